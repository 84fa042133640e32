"""How far the iteration of a job of post-training can be trusted: as far as its least trusted phase, and as published iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from crossflow.answers.bands import LEVELS, Trust, trust_of
from crossflow.answers.evaluation.likeness import iterations_of, likeness, trust
from crossflow.answers.scenario import Scenario

MOST_TRUSTED = "extrapolated"  # of jobs that write answers: iterations were compared with few published ones, whose lengths are not known
NO_LENGTHS = "published iterations give the mean length of answers only"
KNOWN = ("device", "family")  # devices whose iterations are like published ones; of others nobody knows how errors of phases add up


def job_trust(training: Scenario, parts: Mapping[str, Scenario], *, writes: bool) -> Trust:
    """How far the iteration of a job can be trusted.

    Of a job without answers it is that of the least trusted phase, of equal ones of that with the widest band. An iteration that writes
    answers has the band of published ones like it; where there is none, or a phase is of an unknown kind, also that of its phase.

    Parameters
    ----------
    training : the job, whose own workload is a training step of the policy.
    parts : its other phases by name.
    writes : whether answers are written.
    """
    phases = {"training": trust(training), **{name: trust(one) for name, one in parts.items()}}
    worst, found = min(phases.items(), key=lambda phase: _standing(phase[1]))
    named = replace(found, reason=f"{worst.replace('_', ' ')}: {found.reason}" if found.reason and worst != "training" else found.reason)
    run = likeness(training)
    if not writes or found.level == "unknown":
        return named
    whole = trust_of(iterations_of(run), NO_LENGTHS)
    level = LEVELS[min(LEVELS.index(found.level), LEVELS.index(MOST_TRUSTED))]
    reason = "; ".join(filter(None, ((named.reason if found.level == MOST_TRUSTED else ""), NO_LENGTHS)))
    if run.seen in KNOWN and whole.band is not None:
        return Trust(level=level, band=whole.band, basis=whole.basis, reason=reason)
    return replace(named, level=level, reason=reason)


def _standing(found: Trust) -> tuple[int, float]:
    """Place of a phase: less trusted ones and those with wider bands first."""
    return LEVELS.index(found.level), -(found.band.p90 if found.band is not None else 0.0)
