"""Accuracy: predicted against measured, for every table of a folder of measured data."""
