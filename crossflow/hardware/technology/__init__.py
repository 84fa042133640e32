"""Technology components library: what can be built, with which area, power, voltage, energy and speed."""
