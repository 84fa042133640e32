"""Times of traces as people say them."""

from __future__ import annotations

from crossflow.base.units import show

HOUR, MINUTE = 3600.0, 60.0
LONG = 2 * 86400.0  # in days from here on. [s]


def lasting(seconds: float) -> str:
    """A length of time in days, hours, minutes or less.

    >>> lasting(5400.0), lasting(3540.0), lasting(0.25), lasting(259200.0)
    ('1.5 h', '59 min', '250 ms', '3 days')
    """
    if seconds >= LONG:
        return show(seconds, "s", 3)
    if seconds >= HOUR:
        return f"{seconds / HOUR:.3g} h"
    return f"{seconds / MINUTE:.3g} min" if seconds >= MINUTE else show(seconds, "s", 3)
