"""Keys and values on their way from engines that read to engines that write: flows that share the links of both.

Each flow passes the links of its sender and those of its receiver. Rates are max-min fair: all flows grow alike until a link is full, whose
flows then keep what they have (Bertsekas and Gallager, "Data Networks", 2nd ed., 1992, Sec. 6.5.2). They are found anew whenever a flow
begins or ends.

A service has a handful of flows at a time and shares anew twice a request. `max_min` fills one link after the other on plain numbers, in
some 5 to 10 us for one to four flows; `crossflow.hardware.mapping.flows.max_min`, made for thousands, takes 450 us for as few.
Both give the same rates, and a test says so.

Steps of an engine that send between nodes use its link too. While they do, rates are max-min fair among them and the flows: steps have the
rate that flows leave, but no less than that of one of k flows beside them, 1 / (k + 1). What they take of the link on average, flows do
not have (`take`): of steps that send for a part d of their time, alone, and have the share s while they send, d / (1 - d + d / s).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from crossflow.engine.service.ticket import NEVER

Wire = tuple[int, int]  # 0 of a sender, 1 of a receiver, and its number
WirePath = tuple[Wire, Wire]


def max_min(paths: Mapping[int, WirePath], capacity: Mapping[Wire, float]) -> dict[int, float]:
    """Max-min fair rates of flows over links with such capacities.

    >>> out, there, other = (0, 0), (1, 0), (1, 1)
    >>> max_min({7: (out, there), 8: (out, other)}, {out: 3.0, there: 1.0, other: 9.0})
    {7: 1.0, 8: 2.0}
    """
    users: dict[Wire, dict[int, None]] = {}
    for flow, path in paths.items():
        for link in path:
            users.setdefault(link, {})[flow] = None
    left, rates = {link: capacity[link] for link in users}, dict[int, float]()
    while users:
        tight = min(users, key=lambda link: (left[link] / len(users[link]), link))
        share = left[tight] / len(users[tight])
        for flow in list(users[tight]):
            rates[flow] = share
            for link in paths[flow]:
                del users[link][flow]
                left[link] = left[link] if math.isinf(left[link]) else max(left[link] - share, 0.0)
        users = {link: flows for link, flows in users.items() if flows}
    return rates


class Transfers:
    """Flows over time; `ends` is when the next of them ends.

    Parameters
    ----------
    senders, receivers : time that a token takes over the links of each of them, alone. [s]
    """

    def __init__(self, senders: Sequence[float], receivers: Sequence[float]) -> None:
        times = {(side, i): time for side, links in enumerate((senders, receivers)) for i, time in enumerate(links)}
        self.capacity = {link: 1.0 / time if time > 0 else math.inf for link, time in times.items()}
        self.paths: dict[int, WirePath] = {}
        self.left: dict[int, float] = {}  # tokens of each flow that have still to travel. [1]
        self.rates: dict[int, float] = {}  # [1/s]
        self.taken: dict[Wire, float] = {}  # share of a link that steps of its engine take. [1]
        self.now, self.ends, self.next = 0.0, NEVER, -1

    def left_for_steps(self, link: Wire) -> float:
        """The share of a link that steps of its engine have while they send. [1]"""
        flows = [flow for flow, path in self.paths.items() if link in path]
        if not flows or math.isinf(self.capacity[link]):
            return 1.0
        alone = max_min(self.paths, self.capacity)
        return max(1.0 / (len(flows) + 1), 1.0 - sum(alone[flow] for flow in flows) / self.capacity[link])

    def take(self, shares: Mapping[Wire, float], now: float) -> None:
        """Steps of engines take shares of their links."""
        if shares != self.taken:
            self._advance(now)
            self.taken = dict(shares)
            self._share()

    def begin(self, flow: int, sender: int, receiver: int, tokens: float, now: float) -> None:
        """A flow of so many tokens begins."""
        self._advance(now)
        self.paths[flow], self.left[flow] = ((0, sender), (1, receiver)), tokens
        self._share()

    def end(self) -> int:
        """The flow that ends at `ends`."""
        flow = self.next
        self._advance(self.ends)
        del self.paths[flow], self.left[flow]
        self._share()
        return flow

    def _advance(self, now: float) -> None:
        passed, self.now = now - self.now, now
        if passed > 0:
            self.left = {flow: max(left - self.rates[flow] * passed, 0.0) for flow, left in self.left.items()}

    def _share(self) -> None:
        left = {link: self.capacity[link] * (1.0 - share) for link, share in self.taken.items()}
        self.rates = max_min(self.paths, {**self.capacity, **left} if left else self.capacity)
        rest = {flow: left / self.rates[flow] for flow, left in self.left.items()}
        self.next = min(rest, key=lambda flow: (rest[flow], flow), default=-1)
        self.ends = self.now + rest[self.next] if rest else NEVER
