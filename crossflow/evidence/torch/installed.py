"""Whether torch is installed, and in a version that was tested."""

from __future__ import annotations

import importlib.metadata
import warnings

from crossflow.base.errors import CrossflowError

TESTED = ("2.13",)  # minor versions with which the tests pass


def require_torch(use: str) -> None:
    """Check that torch is installed, and warn of a version that was not tested.

    Parameters
    ----------
    use : what needs it, for the message.

    Raises
    ------
    CrossflowError
        Where torch is not installed.
    """
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise CrossflowError(f"{use} needs torch, which is not installed; run: pip install 'crossflow[torch]'") from None
    if version.rpartition(".")[0] not in TESTED:
        warnings.warn(f"torch {version} was not tested with crossflow; tested: {', '.join(f'{one}.*' for one in TESTED)}", stacklevel=2)
