"""Events of a program's step: its kernels and messages, with how often each occurs on all devices."""

from __future__ import annotations

from collections.abc import Iterator

from crossflow.answers.scenario import Scenario
from crossflow.answers.steps.step import FoundEvent, StepEvents
from crossflow.base.arrays import Array
from crossflow.cost.network import Wires, message_steps, route_time
from crossflow.cost.price import kernel_names, kernel_parts
from crossflow.cost.profile import SCOPES, Profile, message_shape, parties
from crossflow.engine.schedule import schedule
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.hardware.mapping.placement import Placement
from crossflow.program.kernels import Timed
from crossflow.program.program import Program


def program_events(scenario: Scenario, program: Program, placement: Placement, step: float) -> StepEvents:
    """Events of a program, which a scenario runs, its mesh laid on the network; the step takes so long. [s]"""
    device, node = scenario.architecture, scenario.nodes[0]
    plan, replicas = schedule(program), scenario.devices / program.classes
    found = [*priced_kernels(program, device, scenario.stack, scenario.profile, plan.busy.sum(axis=0) * replicas)]
    wires = wires_of(scenario)
    for message, often in zip(program.messages, (plan.sent.sum(axis=0) * replicas).tolist(), strict=True):
        for size, route, model in message_steps(message, placement, wires):
            if size[0] > 0 and route.size > 1 and often:
                scope, ranks = SCOPES[int(route.package_size < route.size)], route.size
                key = message.collective, message_shape(float(size[0])), "", parties(message.collective, ranks), scope
                time, _ = route_time(message.collective, size, route, model, wires.profile)
                found.append((key, float(time[0]), often if message.collective == "send_recv" else often / ranks))
    return StepEvents(found, step * scenario.devices, node)


def priced_kernels(
    program: Program, device: Architecture, stack: SoftwareStack | None, profile: Profile | None, often: Array
) -> Iterator[FoundEvent]:
    """Kernels of a program with their times, each as often as it runs on all devices, shape (kernels,); those to measure. [1]"""
    for table, costs, _ in kernel_parts(program, device, stack, profile):
        if table.kind is Timed:
            continue
        times, names = (costs.time - costs.launch)[:, 0].tolist(), kernel_names(table, program.dtype, device)
        for place, (kind, type_, shape), time in zip(table.places.tolist(), names, times, strict=True):
            yield (kind, shape[0], type_, 1, ""), time, float(often[place])


def wires_of(scenario: Scenario) -> Wires:
    """Collectives on the network of a scenario."""
    own = None if scenario.stack is None else scenario.stack.peer_all_reduce
    network, device, node = scenario.system.network, scenario.architecture, scenario.nodes[0]
    return Wires(network=network, architecture=device, node=node, profile=scenario.profile, all_reduce=own)
