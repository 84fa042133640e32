"""Tokens a second of a device against those of a user: each kind of fleet with fewer and more engines for the same requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crossflow.answers.evaluation.replay_figures import ReplayFigures
from crossflow.answers.evaluation.replaying import replayed_on
from crossflow.answers.fleets.kinds import FleetSite, site_of
from crossflow.answers.scenario import Scenario, requests_of
from crossflow.base.drawing.canvas import Scale, new_figure, number_axis, tidy
from crossflow.base.drawing.palette import COLOURS
from crossflow.base.drawing.picture import Picture

if TYPE_CHECKING:
    from crossflow.answers.fleets.ranking import RankedFleet

TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)  # as many engines as a fleet has
DRAWN = 5  # fleets


class LoadedFleet(NamedTuple):
    """A number of engines for the requests: how many each works on in the mean, and what devices and users get of it."""

    engines: int
    concurrency: float  # requests that one works on at once. [1]
    device_rate: float  # [1/s]
    user_rate: float  # of the median request. [1/s]


def loads(scenario: Scenario, fleet: RankedFleet) -> list[LoadedFleet]:
    """The fleet with fewer and more engines that write, on as many devices as that takes."""
    site = site_of(scenario, fleet.kind, requests_of(scenario), round(max(TIMES) * fleet.devices))
    near = {min(site.counts, key=lambda n, wanted=times * fleet.writers: (abs(n - wanted), n)) for times in TIMES}  # type: ignore[misc]
    found = [_loaded(site, n, fleet.readers) for n in sorted(near)]
    return [one for one in found if one is not None]


def _loaded(site: FleetSite, writers: int, readers: int) -> LoadedFleet | None:
    run = replayed_on(site.scenario, site.engines.counted(writers, readers), site.trace)
    told = ReplayFigures(scenario=site.scenario, trace=site.trace, run=run)
    token = None if told.reason is not None else told.latency["tpot_s"]["p50"]
    if not token:
        return None
    at_once = told.found.area / told.span / writers
    return LoadedFleet(writers, at_once, told.output_tokens_per_second / site.devices(writers, readers), 1.0 / token)


def front_picture(scenario: Scenario, fleets: Sequence[RankedFleet]) -> Picture:
    """Lines of the first fleets, with the requests in each engine beside their points and the listed fleet marked."""
    figure = new_figure(8.0, 5.4, f"{scenario.name}: what devices give and what users get")
    axis = figure.subplots()
    for fleet, colour in zip(fleets[:DRAWN], COLOURS, strict=False):
        points = loads(scenario, fleet)
        users, devices = np.array([one.user_rate for one in points]), np.array([one.device_rate for one in points])
        axis.plot(users, devices, color=colour, marker="o", markersize=3.5, linewidth=1.3, label=fleet.kind.name)
        for one in points:
            axis.annotate(
                f"{one.concurrency:.2g}", (one.user_rate, one.device_rate), (3, 3), textcoords="offset points", fontsize=7, color=colour
            )
        axis.plot([fleet.user_rate], [fleet.device_rate], color=colour, marker="o", markersize=9, fillstyle="none", linestyle="none")
    number_axis(axis.xaxis, Scale("tokens / s of a user, in the median", 1.0))
    number_axis(axis.yaxis, Scale("tokens / s of a device", 1.0))
    axis.set_ylim(bottom=0.0)
    tidy(axis, "both")
    axis.legend(fontsize=8, frameon=False, title="numbers: requests in an engine; circles: listed", title_fontsize=8)
    return Picture(figure=figure)
