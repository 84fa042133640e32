"""Engines that make every step together: ranks of data-parallel attention that share out experts.

Their tokens meet at the experts of every layer, so that a step takes as long as that of the rank with most to do, and ranks without
requests run along (vLLM, docs/serving/data_parallel_deployment, "forward passes must be aligned"). Such a rank computes a token or none,
so that experts have the fewer rows, the fewer ranks read prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

from crossflow.engine.service.replica import Replica
from crossflow.engine.service.ticket import DROPPED, NEVER, Ticket


class Lockstep:
    """Engines whose jumps begin and end together; used as a `Replica` is."""

    def __init__(self, members: Sequence[Replica]) -> None:
        self.members = tuple(members)
        self.ends = NEVER

    def submit(self, member: Replica, ticket: Ticket, now: float) -> bool:
        """Give a request to one of them; False where it can never be served there."""
        if not member.holds(ticket):
            ticket.place = DROPPED
            return False
        next_in_turn = member.take(ticket, now, runs=bool(self.busy))
        if not self.busy:
            self.ends = min(self.ends, now)  # of no steps, as of an engine by itself
        elif next_in_turn:
            self.interrupt(now)
        return True

    def interrupt(self, now: float) -> None:
        """Let a jump end with the step that runs, as those behind it are others."""
        if self.busy and not any(one.pieces for one in self.busy):
            for one in self.busy:
                one.shorten(now)
            self.ends = min(one.ends for one in self.busy)

    @property
    def pace(self) -> float:
        """Time of a step with the shares of their ports that engines have now. [s]"""
        return max((one.pace for one in self.busy), default=0.0)

    def stretch(self, now: float, longer: float) -> None:
        """Let what is left of the steps that run take so many times as long. [1]"""
        for one in self.busy:
            one.stretch(now, longer)
        self.ends = min((one.ends for one in self.busy), default=self.ends)

    @property
    def busy(self) -> list[Replica]:
        """Those with something to do in the jump that runs."""
        return [one for one in self.members if one.steps]

    @property
    def queued(self) -> int:
        """Requests that wait. [1]"""
        return sum(one.queued for one in self.members)

    def commit(self) -> list[Ticket]:
        """End the jump that runs, and begin the next; requests that have ended."""
        now = self.ends
        done = [ticket for one in self.busy for ticket in one.finish(now)]
        self.plan(now)
        return done

    def plan(self, now: float) -> None:
        """Choose the next jump: as many steps as all can make, each as long as the longest."""
        known = next((one.last_begun for one in self.busy), now)
        for one in self.members:
            one.plan(now, known)
        if known < now and not self.busy and self.queued:  # nothing to do but what came during the last step: they look at once
            for one in self.members:
                one.plan(now, now)
        busy, wakes = self.busy, min(one.wakes for one in self.members)
        if not busy:
            self.ends = wakes
            return
        if busy[0].table.shares:
            read = sum(one.tokens for one in busy)
            for one in busy:
                one.read_beside(read, len(self.members))
        longest = max(busy, key=lambda one: (one.first, one.slope))
        first, slope = longest.first, longest.slope
        steps = 1 if any(one.awaits for one in self.members) else min(one.steps for one in busy)
        for one in busy:  # until another takes longer
            if one.slope > slope:
                steps = min(steps, int((first - one.first) / (one.slope - slope)) + 1)
        for one in busy:
            one.first, one.slope, one.steps = first, slope, steps
            one.ends = now + one.lasts(steps)
        if wakes < busy[0].ends and steps > 1:
            for one in busy:
                one.shorten(wakes)
        self.ends = busy[0].ends
