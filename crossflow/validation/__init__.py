"""Accuracy: predicted against measured, for every table of a folder of measured data."""

from crossflow.validation.comparison import validate
from crossflow.validation.report import Report, Table, errors

__all__ = ["Report", "Table", "errors", "validate"]
