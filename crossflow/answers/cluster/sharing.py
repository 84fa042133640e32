"""What jobs of a cluster that run at once take from each other on the links between nodes.

Each job is predicted beside the others: as `network.inter.congestion` of its scenario, of which the others are the `jobs`. What a job
sends is taken from its step: the bytes of a device that leave its node, over what its port carries meanwhile, is the share of the time in
which it sends (`duty`). A job of given facts, which sends for a share d of its time, takes 1 - d + d f times as long where what it sends
takes f times as long.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.answers.cluster.kinds import ClusterJobKind
from crossflow.answers.evaluation import evaluate, run_once
from crossflow.answers.evaluation.congestion import CONGESTION, collectives_between
from crossflow.answers.evaluation.figures import task_of
from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario
from crossflow.base.arrays import Index
from crossflow.base.errors import CrossflowError
from crossflow.hardware.architecture.network import Congestion, JobTraffic, NeighbourJob, NetworkSpec
from crossflow.hardware.mapping.congestion import DevicePart, in_order, refusal, slowdown
from crossflow.hardware.mapping.wiring import wired

UNSAID = Congestion(placement="spread", routing="adaptive")  # of a cluster that says nothing: nodes of jobs in turn, and no collisions
MOST_NEIGHBOURS = 31  # jobs that send beside one; devices at rest are one more in a file
MOST_PREDICTED = 5_000  # jobs beside different others that are predicted
LITTLE = 1e-4  # share of the time below which a job sends nothing

OtherJobs = tuple[tuple[int, int, int], ...]  # of jobs that send: their kind, their nodes, and how many there are


def shared_as(network: NetworkSpec, width: int, nodes: int) -> Congestion:
    """How the jobs of a cluster share its network; CrossflowError, with the key that is wrong, where they cannot."""
    said = network.inter.congestion
    if said is not None and said.jobs:
        raise CrossflowError(
            "system.network.inter.congestion.jobs: with links: shared the jobs of the cluster are the others; leave it out"
        )
    if said is not None and said.placement == "by-rail":
        raise CrossflowError("system.network.inter.congestion.placement: jobs of a cluster have whole nodes; take packed or spread")
    found = UNSAID if said is None else said
    if why := refusal(found, wired(network, width, nodes)):
        raise CrossflowError(f"links: {why}")
    return found


def traffic_of(scenario: Scenario, congestion: Congestion, nodes: int) -> JobTraffic | None:
    """What a step of a scenario sends between nodes, of its kinds of messages the one with most time; None where that is next to nothing.

    CrossflowError where a step does not say it.

    Parameters
    ----------
    nodes : of the cluster. [1]
    """
    if scenario.requests is not None or scenario.post_training is not None:
        what = "requests that are replayed" if scenario.requests is not None else "a job of several phases"
        raise CrossflowError(f"sends: what {what} sends is not known; give it, such as sends: {{traffic: ring, duty: 0.1}}")
    if scenario.network().cluster.nodes < 2:
        return None
    found = [one for one in (_of_steps(scenario, congestion, nodes), _of_prompts(scenario)) if one is not None and one.duty > LITTLE]
    return max(found, key=lambda one: one.duty, default=None)


def _of_steps(scenario: Scenario, congestion: Congestion, nodes: int) -> JobTraffic | None:
    """What engines, or devices that train, send among themselves."""
    silent = _silent(nodes - scenario.network().cluster.nodes, scenario.system.devices_per_node)
    port, outcome = scenario.architecture.inter, run_once(scenario).outcome
    names = {name for name, laid in collectives_between(_beside(scenario, congestion, silent)) if not laid.hands_over}
    if port is None or not names:
        return None
    times = {name: float(np.ravel(outcome.communication.get(name, 0.0))[0]) for name in names}
    duty = float(np.ravel(outcome.sent[1] / (port.bandwidth * outcome.total))[0])
    return JobTraffic(traffic="all-to-all" if max(times, key=lambda name: times[name]) == "all_to_all" else "ring", duty=min(duty, 1.0))


def _of_prompts(scenario: Scenario) -> JobTraffic | None:
    """Keys and values that workers for prompts hand over, over what the ports of the fewer of both sides carry."""
    port = scenario.architecture.inter
    if task_of(scenario) != "serving" or not scenario.readers or port is None:
        return None
    from crossflow.answers.steps.services import handed_over  # with queues, which few clusters need

    width, nodes = scenario.system.devices_per_node, scenario.network().cluster.nodes
    reads = -(-scenario.readers // width)
    sent = float(evaluate(scenario).serving["request_throughput_per_s"][0]) * handed_over(scenario)
    duty = sent / (width * min(reads, nodes - reads) * float(port.bandwidth[0]))
    return JobTraffic(traffic="handover", senders=reads / nodes, duty=min(duty, 1.0))


def _silent(nodes: int, width: int) -> tuple[NeighbourJob, ...]:
    """A job on nodes that send nothing, if there are any."""
    return (NeighbourJob(devices=nodes * width, duty=0.0),) if nodes > 0 else ()


def _beside(scenario: Scenario, congestion: Congestion, jobs: Sequence[NeighbourJob]) -> Scenario:
    """A scenario on the shared network, beside other jobs."""
    given = congestion.model_dump(exclude_unset=True) | {"jobs": [job.model_dump(exclude_none=True) for job in jobs]}
    return variant(scenario, {CONGESTION: given})


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedLinks:
    """How many times as long steps of jobs take beside each other.

    Attributes
    ----------
    congestion, network, width, nodes : how links are shared, and the cluster: devices of a node, and nodes. [1]
    kinds : what jobs of each entry are.
    kind, devices : of every job, the number of its entry, and its devices. [1]
    """

    congestion: Congestion
    network: NetworkSpec
    width: int
    nodes: int
    kinds: tuple[ClusterJobKind, ...]
    kind: Index
    devices: Index

    @functools.cached_property
    def _known(self) -> dict[tuple[int, int, OtherJobs], float]:
        return {}

    @functools.cached_property
    def _own_nodes(self) -> tuple[int | None, ...]:
        """Nodes of jobs of each kind, None of given facts, whose devices may differ. [1]"""
        return tuple(None if one.scenario is None else one.scenario.network().cluster.nodes for one in self.kinds)

    def _nodes_of(self, job: int) -> int:
        return self._own_nodes[self.kind[job]] or -(-int(self.devices[job]) // self.width)

    def __call__(self, running: Sequence[int]) -> list[float]:
        """How many times as long what each of some jobs does takes while all of them run, over alone. [1]"""
        each = [(int(self.kind[job]), self._nodes_of(job)) for job in running]
        sending = Counter(one for one in each if one[1] > 1 and self.kinds[one[0]].sends is not None)
        return [self._slower(*one, tuple((*other, many) for other, many in sorted((sending - Counter([one])).items()))) for one in each]

    def _slower(self, kind: int, nodes: int, others: OtherJobs) -> float:
        """The same of a job beside others, looked up."""
        if not others or nodes < 2 or (self.kinds[kind].scenario is None and self.kinds[kind].sends is None):
            return 1.0
        key = kind, nodes, others
        if key not in self._known:
            if len(self._known) >= MOST_PREDICTED:
                raise CrossflowError(
                    f"links: jobs run beside more than {MOST_PREDICTED:,} different others; give fewer kinds or sizes of jobs"
                )
            alone, beside = self._time(kind, nodes, ()), self._time(kind, nodes, others)
            self._known[key] = max(beside / alone, 1.0)
        return self._known[key]

    def _time(self, kind: int, nodes: int, others: OtherJobs) -> float:
        """What a job takes beside others, in any unit."""
        one = self.kinds[kind]
        jobs = self._neighbours(nodes, others, one.sends or JobTraffic())
        if one.scenario is not None:
            return _time_of(_beside(one.scenario, self.congestion, jobs))
        assert one.sends is not None  # others are not slowed
        found = slowdown_of(one.sends, self.congestion.model_copy(update={"jobs": jobs}), self.network, self.width, nodes)
        return 1.0 - one.sends.duty + one.sends.duty * found

    def _neighbours(self, nodes: int, others: OtherJobs, own: JobTraffic) -> tuple[NeighbourJob, ...]:
        """Other jobs as a file says them, by what a job itself sends, and one that sends nothing on the nodes of all others.

        Which nodes a job has is not known, so that the order of entries says nothing of it either.
        """
        if sum(many for *_, many in others) > MOST_NEIGHBOURS:
            raise CrossflowError(f"links: more than {MOST_NEIGHBOURS + 1} jobs run at once that send something; give links: own")
        found = [self._neighbour(kind, its, own) for kind, its, many in others for _ in range(many)]
        return (*in_order(found), *_silent(self.nodes - nodes - sum(its * many for _, its, many in others), self.width))

    def _neighbour(self, kind: int, nodes: int, own: JobTraffic) -> NeighbourJob:
        sends = self.kinds[kind].sends
        assert sends is not None  # as it is among those that send
        before = int(np.clip(sends.priority - own.priority, -8, 8))
        return NeighbourJob(devices=nodes * self.width, **dict(sends) | {"weight": sends.weight / own.weight, "priority": before})


def slowdown_of(sends: JobTraffic, congestion: Congestion, network: NetworkSpec, width: int, nodes: int) -> float:
    """How many times as long what a job on so many nodes sends takes beside others. [1]"""
    part = None
    if sends.senders is not None:
        reads = round(sends.senders * nodes) * width
        part = DevicePart(before=nodes * width - reads, devices=reads, whole=nodes * width)
    return slowdown(congestion, wired(network, width, nodes), width, nodes, sends.traffic, part=part).priced


def _time_of(scenario: Scenario) -> float:
    """What a job does over and over: an iteration, a request from its arrival to its last token, or a step. [s]"""
    score = evaluate(scenario)
    figures: Mapping[str, np.ndarray] = score.serving if task_of(scenario) == "serving" else {"step": score.step_time}
    if scenario.post_training is not None:
        figures = {"iteration": score.job["iteration_time_s"]}
    found = float(figures["e2el_s" if "e2el_s" in figures else next(iter(figures))][0])
    if not np.isfinite(found):
        raise CrossflowError(f"links: {scenario.name} comes to no end beside the jobs that run with it; {score.why(0)}")
    return found
