"""Pictures of results: what `plot` of a result gives, shown by notebooks and saved as files."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crossflow.base.drawing.canvas import as_written, save_as
from crossflow.base.results import Guided, later

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = later("matplotlib.figure", "Figure")


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture(Guided):
    """A figure of matplotlib, which a notebook shows where it is the last line of a cell.

    Attributes
    ----------
    figure : the figure of matplotlib, for changes of one's own.
    """

    figure: Figure

    def save(self, path: str | Path) -> list[Path]:
        """Write the picture as PNG and SVG beside each other; an ending of `path` that names one of them is left off."""
        return save_as(self.figure, Path(path))

    def saved(self, path: str | Path | None) -> Picture:
        """The picture itself, written as well where a path is given."""
        if path is not None:
            self.save(path)
        return self

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        with as_written(self.figure):
            self.figure.savefig(stream, format="png", dpi=110)
        return stream.getvalue()

    def __repr__(self) -> str:
        width, height = self.figure.get_size_inches()
        return f"Picture({width:.1f} x {height:.1f} inches; save(path) writes it)"
