"""What all plots are drawn with: figures, axes of numbers and of names, legends, numbers as text, files.

Colours are safe for colour-blind readers; matplotlib is imported only when something is drawn, and left as it was.
"""

from __future__ import annotations

import contextlib
import io
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossflow.base import files
from crossflow.base.drawing.palette import GREY, RESOURCES, colour_of
from crossflow.base.drawing.words import number, short
from crossflow.base.names import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOES_NOT_FIT = "does not fit in memory or cannot be built"
NAME_HEIGHT = 0.22  # of a name on an axis, with the room around it [inch]
FONT_BELOW = 9  # of legends under plots [pt]
HANDLE, LETTER = 0.65, 0.068  # width of what stands beside the words of a legend, and of a letter. [inch]
CAPTION_HEIGHT = 0.24  # of the line under a plot [inch]
IN_A_ROW = 3  # panels at most, but for five of them, seven and eight, which would leave places empty


class Scale(NamedTuple):
    """An axis of numbers: its label, how much of the SI unit its own unit is, whether it is logarithmic."""

    label: str
    factor: float = 1.0
    log: bool = False


class Ticks(NamedTuple):
    """An axis of given values: a place and a name for each; `real` where the places are the numbers themselves."""

    label: str
    places: list[float]
    names: list[str]
    real: bool = False
    log: bool = False

    def shares(self) -> list[float]:
        """How far along the axis each place lies, from 0 to 1."""
        places = np.log(self.places) if self.log else np.array(self.places)
        low, high = float(places.min()), float(places.max())
        return [float(share) for share in (places - low) / ((high - low) or 1.0)]


_TITLE = 0.95  # of the width of a figure, that its title takes at most


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """An empty figure of a size in inches, with its title above."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.08, w_pad=0.06)  # type: ignore[union-attr, call-arg]
    FigureCanvasAgg(figure)
    if title:
        size = min(12.0, max(9.5, 130.0 * width / len(title)))  # a letter takes some 0.48 of its size
        text = figure.suptitle(textwrap.fill(title, int(130 * width / size)), fontsize=size, parse_math=False)
        taken = text.get_window_extent().width / (figure.dpi * width)
        if taken > _TITLE:  # capitals and digits take more; letters are drawn in whole points
            text.set_fontsize(math.floor(size * _TITLE / taken))
    return figure


def panels(names: Sequence[str], title: str, *, width: float = 3.6, height: float = 3.4, share: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure with a set of axes for each name, in rows that leave no place empty where they can; `width` and `height` of one. [inch]"""
    rows = -(-len(names) // {5: 5, 7: 4, 8: 4}.get(len(names), IN_A_ROW))
    columns = -(-len(names) // rows)
    width = width if columns <= IN_A_ROW else min(width, 2.8)
    figure = new_figure(max(1.6 + width * columns, 5.2), 0.6 + height * rows, title)
    axes = figure.subplots(rows, columns, sharey=share, squeeze=False).ravel().tolist()
    for axis in axes[len(names) :]:
        axis.remove()
    for axis, name in zip(axes, names, strict=False):
        axis.set_title(textwrap.fill(name, int(12 * width)), fontsize=10)
        tidy(axis)
    return figure, axes[: len(names)]


def _grow(figure: Figure, height: float) -> None:
    figure.set_figheight(figure.get_figheight() + height)


def first_of_rows(axes: Sequence[Axes]) -> Sequence[Axes]:
    """The leftmost panel of each row, which carries the label of the y axis."""
    return [axis for axis in axes if (place := axis.get_subplotspec()) is not None and place.is_first_col()]


def tidy(axis: Axes, grid: str = "y") -> None:
    """Faint lines behind what is drawn, no frame above and at the right."""
    axis.grid(axis=grid, color="#dddddd", linewidth=0.6, zorder=0)  # type: ignore[arg-type]
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def nothing(title: str, words: str) -> Figure:
    """A figure that says why it shows nothing."""
    figure = new_figure(5.2, 2.4, title)
    figure.text(0.5, 0.4, textwrap.fill(f"Nothing to show: {words}", 60), ha="center", va="center", color=GREY)
    return figure


def caption_below(figure: Figure, words: str) -> None:
    """A line under everything, if there are words; the figure grows by its height."""
    if words:
        _grow(figure, CAPTION_HEIGHT)
        part = CAPTION_HEIGHT / figure.get_figheight()
        for legend in figure.legends:
            legend.borderaxespad += 72.0 * CAPTION_HEIGHT / FONT_BELOW
        figure.get_layout_engine().set(rect=(0.0, part, 1.0, 1.0 - part))  # type: ignore[union-attr, call-arg]
        figure.text(0.99, 0.5 * part, words, fontsize=8, color=GREY, ha="right", va="center")


@contextlib.contextmanager
def as_written(figure: Figure) -> Iterator[None]:
    """Draw names and titles as they are written, which matplotlib would take for formulas between two dollars."""
    import matplotlib as mpl
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(visible(text.get_text(), "\n"))
    with mpl.rc_context({"text.parse_math": False}):  # for texts that are made as the figure is drawn
        yield


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as NAME.png and NAME.svg, the same bytes for the same figure."""
    import matplotlib as mpl

    written = []
    for ending, options in (("png", {"dpi": 150, "metadata": {"Software": None}}), ("svg", {"metadata": {"Date": None}})):
        stream = io.BytesIO()
        with as_written(figure), mpl.rc_context({"svg.hashsalt": "crossflow"}):
            figure.savefig(stream, format=ending, **options)
        files.write_bytes(folder / f"{name}.{ending}", stream.getvalue())
        written.append(folder / f"{name}.{ending}")
    return written


def save_as(figure: Figure, path: Path) -> list[Path]:
    """Save a figure as PNG and SVG, whichever of them a path ends in."""
    stem = path.with_suffix("") if path.suffix in (".png", ".svg") else path
    return save(figure, stem.parent, stem.name)


# ------------------------------------------------------------------------------------------ axes


def number_axis(axis: Any, scale: Scale) -> None:
    """Make an axis of numbers: its label, its scale, ticks in its unit. `axis` is the xaxis or yaxis of some axes."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    def written(value: float) -> str:
        return _tick(value / scale.factor)

    axis.set_label_text(scale.label)
    if scale.log:
        _logarithmic(axis)
        low, high = sorted(axis.get_view_interval())
        axis.set_major_locator(_apart(axis, _logarithmic_locator(high / low), written))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))


def _tick(value: float) -> str:
    """A number at an axis: millions as such.

    >>> _tick(2.5e7), _tick(0.25)
    ('25 M', '0.25')
    """
    return f"{number(value / 1e6)} M" if 1e6 <= abs(value) < 1e10 else number(value)


def tick_axis(axis: Any, ticks: Ticks, width: float) -> None:
    """Make an axis of given values: names at even distances, or numbers where they are. `width` of the axis. [inch]

    Names too long to stand side by side lean, and the figure grows by their height.
    """
    axis.set_label_text(ticks.label)
    if ticks.log:
        _logarithmic(axis)
        axis.minorticks_off()
    places, names = _written(ticks, width)
    axis.set_ticks(places, names)
    longest = 0.09 * max(map(len, names), default=0)
    if axis.axis_name == "x" and not ticks.real and longest > 0.9 * width / max(len(names), 1):
        axis.set_tick_params(rotation=35)
        for text in axis.get_ticklabels():
            text.set(ha="right", rotation_mode="anchor")
        _grow(axis.figure, 0.5 * longest * axis.axes.get_subplotspec().is_first_col())


def _logarithmic(axis: Any) -> None:
    (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")


def _logarithmic_locator(spread: float) -> Any:
    """A handful of ticks on a logarithmic axis, by how many times its end is its beginning."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    known = ((100.0, (1.0,)), (10.0, (1.0, 2.0, 5.0)), (2.0, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    subs = next((subs for least, subs in known if spread > least), None)
    return MaxNLocator(5) if subs is None else LogLocator(subs=subs)


def _apart(axis: Any, locator: Any, written: Callable[[float], str]) -> Any:
    """The ticks of a locator whose labels do not touch one another on an axis of x, as long as it is when it is drawn; two at least."""
    from matplotlib.ticker import Locator, MaxNLocator

    class ApartLocator(Locator):
        def __call__(self) -> Any:
            low, high = sorted(axis.get_view_interval())
            return self.tick_values(low, high)

        def tick_values(self, vmin: float, vmax: float) -> Any:
            few: Any = MaxNLocator(4)
            found = ([place for place in one.tick_values(vmin, vmax) if vmin <= place <= vmax] for one in (locator, few))
            places = next((some for some in found if len(some) > 1), [])
            if axis.axis_name != "x" or len(places) < 2 or vmin <= 0:
                return places
            width = axis.axes.get_window_extent().width / axis.axes.figure.dpi
            share = [float(np.log(place / vmin) / np.log(vmax / vmin)) for place in places]
            return [places[i] for i in _not_touching(share, [written(place) for place in places], width)]

    return ApartLocator()


def _not_touching(share: Sequence[float], names: Sequence[str], width: float) -> list[int]:
    """Of labels along an axis of a width, those that do not touch the one before. [inch]"""
    kept: list[int] = []
    for i in sorted(range(len(share)), key=share.__getitem__):
        if not kept or (share[i] - share[kept[-1]]) * width > 0.05 * (len(names[i]) + len(names[kept[-1]])):
            kept.append(i)
    return kept


def _written(ticks: Ticks, width: float) -> tuple[list[float], list[str]]:
    """Ticks that are written: of too many every second or third; of numbers those that do not touch the one before."""
    if not ticks.real:
        step = -(-len(ticks.places) // max(int(width / NAME_HEIGHT), 1))
        return ticks.places[::step], [short(visible(name, "\n")) for name in ticks.names[::step]]
    kept = _not_touching(ticks.shares(), ticks.names, width)
    return [ticks.places[i] for i in kept], [ticks.names[i] for i in kept]


# ------------------------------------------------------------------------------------------ legends


def bound_marks(bounds: Iterable[str]) -> list[Any]:
    """Entries of a legend for the marker shapes of the resources that bound."""
    return [grey_mark(bound, marker=marker_of(bound)) for bound in dict.fromkeys(bounds) if bound]


def marker_of(bound: str) -> str:
    """Marker of what a resource bounds."""
    return RESOURCES[bound].marker if bound in RESOURCES else "*"


def grey_mark(text: str, **style: Any) -> Any:
    """Entry of a legend that is about a marker, whatever its colour."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **{"color": GREY, "linestyle": "none", "markersize": 6.5, "label": text, **style})


def coloured_lines(names: Sequence[str]) -> list[Any]:
    """Entries of a legend for the colours of the series; none for a series without a name."""
    from matplotlib.lines import Line2D

    return [Line2D([], [], color=colour_of(i), linewidth=2.0, label=short(name)) for i, name in enumerate(names) if name]


def legend_below(figure: Figure, handles: Sequence[Any]) -> None:
    """Legend under all panels, in as many columns as fit; the figure grows by its height."""
    if not handles:
        return
    columns = max(1, min(len(handles), int(figure.get_figwidth() / _width(handles))))
    _legend(figure, handles, columns)


def legend_groups(figure: Figure, groups: Mapping[str, Sequence[Any]]) -> None:
    """Legend under all panels, each group in columns of its own below its title; the figure grows by its height."""
    held = {title: list(handles) for title, handles in groups.items() if handles}
    if not held:
        return
    most = _widest([_width([*handles, _words(title)]) for title, handles in held.items()], figure.get_figwidth())
    held = {title: _wrapped(handles, most) for title, handles in held.items()}
    room = max(1, int(figure.get_figwidth() / max(_width([*handles, _words(title)]) for title, handles in held.items())))
    most = max(len(handles) for handles in held.values())
    rows = next((n for n in range(1, most + 1) if sum(-(-len(handles) // n) for handles in held.values()) <= room), most)
    entries: list[Any] = []
    for title, handles in held.items():
        for i in range(0, len(handles), rows):
            column = handles[i : i + rows]
            entries += [_words(title if i == 0 else ""), *column, *(_words("") for _ in range(rows - len(column)))]
    drawn = _legend(figure, entries, len(entries) // (rows + 1))
    for text in drawn.get_texts():
        if text.get_text() in held:
            text.set_fontweight("bold")


def _words(text: str) -> Any:
    """An entry that is words alone."""
    return grey_mark(text or " ", marker="")


def _widest(widths: Sequence[float], room: float) -> float:
    """How wide a column may be so that all find room, where narrower ones take what they need. [inch]"""
    left = sorted(widths)
    while left and left[0] * len(left) < room:
        room -= left.pop(0)
    return room / len(left) if left else max(widths)


def _wrapped(handles: Iterable[Any], width: float) -> list[Any]:
    """Entries with the words of those that are wider than a column may be in entries of their own below. [inch]"""
    found: list[Any] = []
    for handle in handles:
        first, *others = textwrap.wrap(handle.get_label(), max(12, round((width - HANDLE) / LETTER)), break_long_words=False) or [" "]
        handle.set_label(first)
        found += [handle, *(_words(line) for line in others)]
    return found


def _width(handles: Sequence[Any]) -> float:
    """Of a column of a legend. [inch]"""
    return HANDLE + LETTER * max(len(line) for handle in handles for line in handle.get_label().split("\n"))


def _legend(figure: Figure, handles: Sequence[Any], columns: int) -> Any:
    _grow(figure, 0.1 + 0.19 * -(-len(handles) // columns))
    return figure.legend(handles=list(handles), loc="outside lower center", ncols=columns, frameon=False, fontsize=FONT_BELOW)
