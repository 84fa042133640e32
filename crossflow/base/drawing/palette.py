"""One colour and one marker for each resource, in every picture and page. Safe for colour-blind readers (after Okabe and Ito)."""

from __future__ import annotations

from typing import NamedTuple

# One a series: Okabe and Ito, less the yellow that is hard to see on white, and three of Tol's muted colours for a long legend.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#332288", "#882255", "#999933", "#999999")
GREY, PALE = "#444444", "#bbbbbb"


class Look(NamedTuple):
    """How a resource is drawn: its colour, its marker, its colour on a terminal."""

    colour: str
    marker: str
    terminal: str


RESOURCES = {
    "compute": Look("#0072B2", "^", "blue"),
    "registers": Look("#CC79A7", "v", "magenta"),
    "l1": Look("#E69F00", "<", "yellow"),
    "l2": Look("#D55E00", "s", "red"),
    "l3": Look("#7F3C00", ">", "bright_red"),
    "memory": Look("#009E73", "o", "green"),
    "network": Look("#56B4E9", "D", "cyan"),
    "launch": Look("#999999", "P", "white"),
    "host": Look("#666666", "p", "white"),
    "bubble": Look("#D9D9D9", "X", "bright_black"),
}  # fmt: skip
# Beside them on a page: kinds of passes, in colours that no resource has; tints of main memory for what lies in it, dark to light.
PASSES = {"forward": "#b9a3dd", "backward": "#5b3a9b", "weight gradient": "#8a6cc2", "update": "#8f7a1f"}
OTHER_PASSES = ("#7d2248", "#b5b35c", "#c9a27e", "#8a6d3b")
TINTS = ("#00402e", RESOURCES["memory"].colour, "#cdeee3")
WAITING = ("launch", "host", "bubble")  # greys, which pages hatch: without red and green a grey looks like other colours
# What takes the time of a resource under another name.
SAME = {
    "memory bound compute": "memory", "memory bound": "memory", "exposed communication": "network", "communication": "network",
    "other": "launch",
}  # fmt: skip


def resource(name: str) -> Look | None:
    """How a resource is drawn, or a part of a step that it takes; None for a name that is no resource.

    >>> resource("exposed_communication") == resource("network"), resource("weights")
    (True, None)
    """
    words = name.replace("_", " ").lower()
    return RESOURCES.get(SAME.get(words, words))


def colour_of(i: int) -> str:
    """Colour of a series by its number, the same ones again where there are many."""
    return COLOURS[i % len(COLOURS)]


def colours_of(names: list[str]) -> list[str]:
    """A colour for each name: that of a resource, and for the others those that no resource among them has, in turn."""
    taken = {look.colour for name in names if (look := resource(name)) is not None}
    free = [colour for colour in COLOURS if colour not in taken] or list(COLOURS)
    others = [name for name in names if resource(name) is None]
    return [look.colour if (look := resource(name)) is not None else free[others.index(name) % len(free)] for name in names]
