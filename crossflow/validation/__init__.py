"""Accuracy: predicted against measured, for every table of a folder of measured data."""

from crossflow.validation.report import Report, Table, errors
from crossflow.validation.tables import validate

__all__ = ["Report", "Table", "errors", "validate"]
