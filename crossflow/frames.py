"""pandas, for tables of results."""

from __future__ import annotations

import importlib
from typing import Any

from crossflow.errors import CrossflowError


def pandas() -> Any:
    """The module; CrossflowError where it is not installed."""
    try:
        return importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise CrossflowError("to_frame needs pandas, which is not installed; run: pip install 'crossflow[frames]'") from None
