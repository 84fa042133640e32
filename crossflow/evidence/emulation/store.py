"""The store where ranks meet, as if every rank wrote to it what this one writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from crossflow.base.errors import CrossflowError


class SharedStore(dist.Store):
    """A store of one process: counters grow by all ranks, and the key of another rank has the value of the own one.

    Parameters
    ----------
    rank, ranks : the real rank, and all of them.
    refused : makes the error for a key that nobody writes.
    """

    def __init__(self, rank: int, ranks: int, refused: Callable[[str], CrossflowError]) -> None:
        super().__init__()
        self.inner, self.rank_, self.ranks, self.refused, self.keys = dist.HashStore(), rank, ranks, refused, set[str]()

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self.keys.add(key)
        self.inner.set(key, value)

    def compare_set(self, key: str, expected: Any, desired: Any) -> Any:
        """Write a value where the old one is as expected."""
        self.keys.add(key)
        return self.inner.compare_set(key, expected, desired)

    def add(self, key: str, amount: int) -> int:
        """Count, as all ranks do."""
        self.keys.add(key)
        return int(self.inner.add(key, amount * self.ranks))

    def append(self, key: str, value: Any) -> None:
        """Lengthen a value."""
        self.keys.add(key)
        self.inner.append(key, value)

    def get(self, key: str) -> Any:
        """The value of a key, that of the own key of its kind where another rank would write it."""
        return self.inner.get(self._own(key))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002 - the others have come
        """Wait for keys."""
        for key in keys:
            self._own(key)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether keys are there."""
        return all(self._found(key) is not None for key in keys)

    def multi_get(self, keys: Sequence[str]) -> list[Any]:
        """Values of keys."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Write values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def delete_key(self, key: str) -> bool:
        """Delete a key."""
        self.keys.discard(key)
        return bool(self.inner.delete_key(key))

    def num_keys(self) -> int:
        """Number of keys."""
        return int(self.inner.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        """Nobody waits."""

    def _found(self, key: str) -> str | None:
        """A key that is there, or the own one of its kind."""
        if key in self.keys:
            return key
        spans = list(re.finditer(r"\d+", key))
        others = (key[: one.start()] + str(self.rank_) + key[one.end() :] for one in spans if int(one[0]) < self.ranks)
        return next((one for one in others if one in self.keys), None)

    def _own(self, key: str) -> str:
        found = self._found(key)
        if found is None:
            raise self.refused(
                f"the script waits for the key '{key}' of a store, which this rank does not write, and what an emulated rank writes is not "
                "known; write it on every rank, or send it by broadcast_object_list"
            )
        return found
