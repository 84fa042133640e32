"""A step as it passes: what every device does and when."""
