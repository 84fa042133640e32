"""How the scenario of a page was given, so that what the page writes for other commands begins with the same words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What was given.

    Attributes
    ----------
    words : what names the scenario behind `crossflow predict`: a file, or options such as ``--model llama3-8b --on dgx-h100``.
    settings : texts of ``--set`` beside it.
    settled : numbers that were assumed from the others; they are written out where those may have changed.
    file : its file, "" where it has none; then Python gets its data.
    assumed : sentences on what was assumed.
    """

    words: tuple[str, ...]
    settings: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()
    file: str = ""
    assumed: tuple[str, ...] = ()

    def overridden(self, changes: Mapping[str, str]) -> list[str]:
        """Texts of all settings, those of a design in place of the ones that they change."""
        own = [*self.settings, *(self.settled if changes else ())]
        kept = [text for text in own if text.partition("=")[0] not in changes]
        return [*kept, *(f"{path}={word}" for path, word in changes.items())]

    def line(self, changes: Mapping[str, str]) -> str:
        """The command line that predicts a design."""
        settings = self.overridden(changes)
        return " ".join(map(shlex.quote, ["crossflow", "predict", *self.words, *(["--set", *settings] if settings else [])]))

    def python(self, data: Mapping[str, Any], changes: Mapping[str, str]) -> str:
        """The same as a script; `data` are those of the scenario as it was opened, in which its own settings are."""
        source, settings = (self.file, self.overridden(changes)) if self.file else (dict(data), _texts(changes))
        return f"import crossflow\n\nscenario = crossflow.load({source!r}, {settings!r})\nprint(crossflow.predict(scenario))\n"


def _texts(changes: Mapping[str, str]) -> Sequence[str]:
    return [f"{path}={word}" for path, word in changes.items()]
