"""Small clusters and their jobs that `crossflow schedule` should accept, and laws of them."""

import copy
import json

import numpy as np
from hypothesis import strategies as st

import crossflow
from tests.generated.inputs import pick, quantities, sometimes

SCHEDULERS = ["fifo", "backfill", "preemptive", {"kind": "gang", "quantum": "30 min"}]


@st.composite
def clusters(draw):
    """A cluster of one kind of device, a scheduler, and a few entries of jobs."""
    nodes = draw(pick([1, 2, 4]))
    document = {"name": "drawn", "system": {"template": "h100-ib-cluster", "nodes": nodes}, "scheduler": draw(pick(SCHEDULERS))}
    if sometimes(draw, 2):
        document["system"]["operation"] = {"price": "2 USD/hour", "pue": 1.2, "carbon_intensity": "400 g/kWh"}
    if sometimes(draw):
        document["carbon_by_hour"] = ["500 g/kWh", "200 g/kWh"]
        document["system"].get("operation", {}).pop("carbon_intensity", None)
    if sometimes(draw, 4):
        document["power_cap"] = f"{nodes * 14} kW"
    jobs = []
    for number in range(draw(st.integers(1, 4))):
        job = {"name": f"j{number}", "devices": draw(pick([1, 8, 8 * nodes])), "time": draw(quantities(1, 600, "min"))}
        if sometimes(draw, 2):
            job["power"] = draw(quantities(200, 1200, "W"))
        if sometimes(draw, 2):
            job |= {"arrivals": {"law": "poisson", "rate": draw(quantities(0.1, 5, "1/hour"))}, "count": draw(st.integers(1, 12))}
        else:
            job["arrival"] = draw(quantities(1, 900, "min"))
        if sometimes(draw):
            job["priority"] = draw(pick([0, 1, 5]))
        if document["scheduler"] in ("preemptive", SCHEDULERS[-1]) and sometimes(draw):
            job["checkpoint"] = {"save": "1 min", "load": "2 min"}
        jobs.append(job)
    return {**document, "seed": draw(st.integers(0, 5)), "jobs": jobs}


def told(document, settings=()):
    """What is scheduled, as plain data without gaps, and when each job has devices."""
    found = crossflow.schedule(copy.deepcopy(document), *settings)
    assert str(found)
    return json.loads(json.dumps(found.to_dict(), allow_nan=False)), found.found


def scheduled_alike(document):
    """No job begins before it comes, and no more devices are in use than there are; the order of keys and `--set` say nothing else."""
    data, found = told(document)
    jobs, stays = found.jobs, found.stays
    assert (found.start >= jobs.arrival * (1 - 1e-12)).all()
    assert (found.end - found.start >= jobs.time * (1 - 1e-9)).all()
    np.testing.assert_allclose(np.bincount(stays.job, stays.times["useful"], minlength=len(jobs)), jobs.time, rtol=1e-9)
    edges = np.unique(np.concatenate([stays.begin, stays.end]))
    for at in 0.5 * (edges[1:] + edges[:-1]):
        assert jobs.devices[stays.job[(stays.begin < at) & (at < stays.end)]].sum() <= found.room.devices
    assert told({key: document[key] for key in reversed(document)})[0] == data
    assert told({key: value for key, value in document.items() if key != "seed"}, [f"seed={document['seed']}"])[0] == data


def served_no_later_by_twice_the_nodes(document):
    """Jobs that are served in the order in which they come; those of other disciplines may pass each other."""
    if document["scheduler"] != "fifo":
        return
    larger = copy.deepcopy(document)
    larger["system"]["nodes"] *= 2
    if "power_cap" in larger:
        larger["power_cap"] = f"{2 * float(document['power_cap'].split()[0])} kW"
    few, many = told(document)[1], told(larger)[1]
    assert (many.start <= few.start + 1e-6).all()


CLUSTER_LAWS = (scheduled_alike, served_no_later_by_twice_the_nodes)
