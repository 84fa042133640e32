"""What can be moved on a page as a file: the controls that somebody asks for, and the values of each for a grid of bounded size."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from crossflow.answers.explanation.dividing import count_path, legal
from crossflow.answers.points import varied
from crossflow.answers.scenario import Scenario
from crossflow.base import files
from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.edges.explore.controls import Control, controls

AxisKind = Literal["number", "whole", "name", "strategy"]
STRATEGY = "strategy"
STEPS, FEWEST = 9, 3  # values of a number, and the fewest where a grid would be too large
DOUBLINGS = 2  # of a whole number to either side
BEST = 6  # strategies of each number of devices, model and so on
NAMES = 16  # of a control that a page holds, where nobody says which
MOST = 3000  # designs of a page, some megabytes
MOVES = 1.001  # largest over smallest time of a step from which on a number counts
OPTION = "--with"
INTER = ".inter."  # in paths of the network between nodes, which is chosen more freely than that inside of them


@dataclass(frozen=True, kw_only=True)
class GridAxis:
    """A control of a grid: its path, what is told of it, its values, and the place among them of the scenario's own.

    The values of the strategy are the places of the best ones, which are others on every number of devices.
    """

    path: str
    kind: AxisKind
    values: tuple[Any, ...]
    own: int
    given: bool = False  # whether somebody has named the values

    @property
    def discrete(self) -> bool:
        """Whether each value makes a scenario of its own."""
        return self.kind in ("whole", "name")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the page."""
        return {"path": self.path, "kind": self.kind, "values": list(self.values), "own": self.own}


def movable(scenario: Scenario) -> dict[str, Control]:
    """Controls that can be moved one by one, by path."""
    return {control.path: control for control in controls(scenario) if not _fixed(control)}


def _fixed(control: Control) -> str:
    """Why a control cannot be moved by itself; "" where it can."""
    if control.stack is not None:
        return "is a share of a budget, which others would have to give; it moves only on the page of a running crossflow"
    if control.kind == "name":
        return "" if len(control.options) > 1 else "has no other value"
    return "" if control.least is not None else "has no range to move in"


def grid_axes(scenario: Scenario, wanted: Sequence[str], reach: Mapping[str, float]) -> tuple[GridAxis, ...]:
    """Axes of a grid of at most `MOST` designs, those of scenarios of their own first.

    Parameters
    ----------
    wanted : paths, or paths with the values to take such as ``system.nodes=8:16:32``; where there are none, what a user decides first:
        the number of devices, the strategy and the network, and where some of these cannot be moved the numbers with the largest reach.
    reach : largest over smallest time of a step over the range of each number.

    Raises
    ------
    CrossflowError
        For a path that cannot be moved, a value that it cannot have, and for too many designs.
    """
    asked = list(wanted) or _usual(scenario, reach)
    axes = [_axis(scenario, *text.partition("=")[::2]) for text in asked]
    axes = list({axis.path: axis for axis in axes}.values())
    order: Mapping[str, int] = {"name": 0, "whole": 1, "strategy": 2, "number": 3}
    return tuple(sorted(_bounded(scenario, axes), key=lambda axis: order[axis.kind]))


def _usual(scenario: Scenario, reach: Mapping[str, float]) -> list[str]:
    """What a page lets move where nobody says what."""
    known = movable(scenario)
    links = [path for path in known if path.startswith("system.network.") and path.endswith(".bandwidth") and reach.get(path, 1.0) > MOVES]
    network = max(links, key=lambda path: (INTER in path and scenario.nodes[1] > 1, reach[path]), default="")
    first = [path for path in (count_path(scenario), STRATEGY, network) if path in known or (path == STRATEGY and _divisible(scenario))]
    more = sorted((path for path in reach if path in known and path not in first), key=lambda path: -reach[path])
    return [*first, *more][:3]


@functools.lru_cache(maxsize=8)
def _divisible(scenario: Scenario) -> bool:
    """Whether there is a choice of strategies."""
    return len(legal(scenario)) > 1


def _axis(scenario: Scenario, path: str, values: str) -> GridAxis:
    if path == STRATEGY and _divisible(scenario):
        return GridAxis(path=STRATEGY, kind="strategy", values=tuple(range(_best(values))), own=0, given=True)
    known = movable(scenario)
    if path not in known:
        raise CrossflowError(f"{OPTION} {path}: {_refusal(scenario, path, [*known, *([STRATEGY] if _divisible(scenario) else [])])}")
    control = known[path]
    listed = _read(scenario, control, values.split(":")) if values else _values(scenario, control)
    return GridAxis(path=path, kind=control.kind, values=listed, own=listed.index(_own(control)), given=bool(values))


def _best(text: str) -> int:
    """How many strategies are kept, as ``strategy=10`` says."""
    if not text:
        return BEST
    if not text.isdecimal() or not 1 <= int(text) <= 50:
        raise CrossflowError(f"{OPTION} {STRATEGY}={text}: expected how many of the best strategies to keep, from 1 to 50")
    return int(text)


def _refusal(scenario: Scenario, path: str, known: Sequence[str]) -> str:
    """Why a path cannot be moved, with what may be meant."""
    control = next((control for control in controls(scenario) if control.path == path), None)
    if control is not None:
        return f"it {_fixed(control)}"
    if path == STRATEGY:
        return "there is one way to divide this workload"
    tail = path.rpartition(".")[2]
    near = did_you_mean(path, known) or did_you_mean(tail, [one for one in known if one.rpartition(".")[2] == tail])
    return f"nothing of this scenario that can be moved{near or '; such as ' + ', '.join(known[:5])}"


def _own(control: Control) -> Any:
    return float(control.value) if control.kind == "number" else control.value


def _values(scenario: Scenario, control: Control) -> tuple[Any, ...]:
    """Values of a control over its range, the scenario's own among them."""
    if control.kind == "number":
        return _spread(scenario, control, STEPS)
    if control.kind == "whole":
        return _doubled(control)
    if len(control.options) > NAMES:
        some = ":".join(map(str, dict.fromkeys((control.value, *control.options[:2]))))
        raise CrossflowError(f"{OPTION} {control.path}: it has {len(control.options)} values; name those to hold: {control.path}={some}")
    return tuple(dict.fromkeys((control.value, *control.options)))


def _doubled(control: Control) -> tuple[int, ...]:
    """A whole number doubled and halved some times, as far as it stays one."""
    value, span = int(control.value), range(1, DOUBLINGS + 1)
    found = {value, *(value * 2**k for k in span), *(value // 2**k for k in span if value % 2**k == 0)}
    return tuple(sorted(found))


def _spread(scenario: Scenario, control: Control, count: int) -> tuple[float, ...]:
    """Values of a number over its slider, its own among them."""
    assert control.least is not None  # it can be moved
    assert control.most is not None
    ends = (control.least, control.most)
    spread = np.geomspace(*ends, count) if control.log else np.linspace(*ends, count)
    quantity = varied(scenario, control.path)
    assert quantity is not None  # the control is a number
    if quantity.whole:
        spread = np.round(spread)
    found = {float(value) for value in spread if quantity.gt is None or value > quantity.gt}
    own = float(control.value)
    near = {value for value in found if abs(value - own) <= 1e-9 * abs(own)}
    return tuple(sorted({*(found - near), own}))


def _read(scenario: Scenario, control: Control, texts: Sequence[str]) -> tuple[Any, ...]:
    """Values that somebody has named, and the scenario's own."""
    found = [_one(scenario, control, text.strip()) for text in texts if text.strip()]
    kept = dict.fromkeys((*found, _own(control)))
    return tuple(kept) if control.kind == "name" else tuple(sorted(kept))


def _one(scenario: Scenario, control: Control, text: str) -> Any:
    where = f"{OPTION} {control.path}"
    if control.kind == "name":
        options = [str(option) for option in control.options]
        if text not in options:
            raise CrossflowError(f"{where}: there is no '{text}'{did_you_mean(text, options)}")
        return control.options[options.index(text)]
    if control.kind == "whole":
        if not text.isdecimal() or int(text) < 1:
            raise CrossflowError(f"{where}: expected positive whole numbers such as 8:16:32, got '{text}'")
        return int(text)
    quantity = varied(scenario, control.path)
    assert quantity is not None  # the control is a number
    try:
        return quantity.checked(float(quantity.read(files.scalar(text))[0]))
    except ValueError as error:
        raise CrossflowError(f"{where}: {error}") from None


def _bounded(scenario: Scenario, axes: Sequence[GridAxis]) -> list[GridAxis]:
    """The axes with fewer values of numbers where there are too many designs."""
    found, known = list(axes), movable(scenario)
    while (count := math.prod(len(axis.values) for axis in found)) > MOST:
        wide = [i for i, axis in enumerate(found) if axis.kind == "number" and not axis.given and len(axis.values) > FEWEST]
        if not wide:
            listed = ", ".join(f"{axis.path} ({len(axis.values)})" for axis in found)
            cure = f"leave one out, or name fewer values, such as {found[0].path}={':'.join(map(str, found[0].values[:2]))}"
            raise CrossflowError(f"{OPTION}: {listed} make {count:,} designs, and a page holds {MOST:,}: {cure}")
        place = max(wide, key=lambda i: len(found[i].values))
        axis = found[place]
        values = _spread(scenario, known[axis.path], max(FEWEST - 1, len(axis.values) - 3))
        found[place] = replace(axis, values=values, own=values.index(_own(known[axis.path])))
    return found
