"""Traces of jobs: rows as the documentation of each trace shows them, and wrong ones."""

import json

import pytest

from crossflow.base.errors import SpecError
from crossflow.base.files import Document, validate
from crossflow.workload.cluster.draws import drawn_jobs
from crossflow.workload.cluster.reading import read_jobs
from crossflow.workload.cluster.spec import ClusterFile, JobsSpec

# Rows of the READMEs of AcmeTrace and HeliosData, the second one made one of no GPUs; names of columns of the others, see `formats`.
ACME = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
5778440,u5907,1,0,128,Other,COMPLETED,2023-03-01 00:19:58+08:00,2023-03-01 00:24:11+08:00,2023-03-01 01:09:04+08:00,2693,13,0
5778469,u5907,1,8,128,Pretrain,COMPLETED,2023-03-01 00:23:58+08:00,2023-03-01 00:24:11+08:00,2023-03-01 01:09:04+08:00,2693,13,21544.0
"""
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
"""
PAI = "job_id,num_gpu,submit_time,num_inst,duration\n1,0.5,10,4,30\n2,0.25,20,1,40\n"
TASKS = """\
job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type
a,worker,3,Terminated,200,500,600,29,100,V100
b,worker,2,Terminated,100,400,600,29,25,V100
c,worker,1,Running,300,,600,29,100,V100
"""
GPUS = [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}, {"ip": "m48", "gpus": ["gpu0"]}]
TRIES = [("2017-10-07 01:12:09", "2017-10-07 01:13:23"), ("2017-10-07 01:13:30", "2017-10-07 02:13:30"), ("2017-10-07 03:00:00", None)]
PHILLY = [
    {"status": "Pass", "vc": "ee9e8c", "jobid": "1", "submitted_time": "2017-10-07 01:11:39", "user": "ce",
     "attempts": [{"start_time": begin, "end_time": end, "detail": GPUS} for begin, end in TRIES]},
    {"status": "Killed", "vc": "ee9e8c", "jobid": "2", "submitted_time": "2017-10-07 01:12:39", "user": "ce", "attempts": []},
]  # fmt: skip
HOURS = "arrival,devices,hours\n0,8,2\n0.5,4,1.5\n"


def read(tmp_path, text, name="jobs.csv", **given):
    path = tmp_path / name
    path.write_text(text)
    return read_jobs(path, validate(JobsSpec, Document(file="f.yaml", data={"trace": name, **given})))


SLICES = "arrival_s,devices,time_s,slice\n0,24,9,2x3x4\n1,8,9,\n2,24,9,2x3x4\n"


def test_slices_of_a_table_are_read_and_one_that_cannot_be_is_told_with_its_line(tmp_path):
    found = read(tmp_path, SLICES)
    assert [found.slices[one] for one in found.slice] == ["2x3x4", "", "2x3x4"]
    for wrong, sentence in (("2 by 3", "expected the sizes of a slice, such as 4x4x8, or nothing, got '2 by 3'"), ("2x4x4", "of its job")):
        with pytest.raises(SpecError, match=f"jobs.csv:4: slice: .*{sentence}"):
            read(tmp_path, f"{SLICES[: SLICES.rindex('2x3x4')]}{wrong}\n")


@pytest.mark.parametrize(
    ("text", "name", "rows", "classes"),
    [
        (ACME, "acme.csv", [(0, 8, 117, 0), (336, 8, 2693, 1)], ("Other", "Pretrain")),
        (HELIOS, "helios.csv", [(0, 1, 36848, 0), (26, 4, 249, 1)], ("vcJkd", "vchbv")),
        (PAI, "pai.csv", [(10, 2, 30, 0), (20, 1, 40, 0)], ("all",)),
        (TASKS, "tasks.csv", [(100, 1, 300, 0), (200, 3, 300, 0)], ("worker",)),
        (json.dumps(PHILLY), "philly.json", [(0, 3, 74 + 3600, 0)], ("ee9e8c",)),
        (HOURS, "hours.csv", [(0, 8, 7200, 0), (1800, 4, 5400, 0)], ("all",)),
    ],
)
def test_public_traces_are_recognised(tmp_path, text, name, rows, classes):
    found = read(tmp_path, text, name)
    assert list(zip(found.arrival, found.devices, found.time, found.kind, strict=True)) == rows
    assert found.classes == classes


def test_jobs_that_are_left_out_and_rounded_are_told(tmp_path):
    assert read(tmp_path, ACME).notes == ("jobs.csv: 1 of 3 jobs have no devices or never ran, and are left out",)
    assert read(tmp_path, PAI).notes == ("jobs.csv: 1 jobs with a part of a device are counted with a whole one",)
    assert not read(tmp_path, HOURS).notes


def test_columns_are_named_and_limits_taken(tmp_path):
    text = "when,much,long,who\n1000,8,2,b\n0,4,3,a\n"
    columns = {"arrival": "when", "devices": "much", "time": "long", "class": "who"}
    found = read(tmp_path, text, columns=columns, time_unit="ms", limit=1)
    assert (found.arrival.tolist(), found.devices.tolist(), found.time.tolist(), found.classes) == ([0.0], [4], [0.003], ("b", "a"))
    assert read(tmp_path, text, columns=columns, time_unit="s").arrival.tolist() == [0.0, 1000.0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HOURS.replace("4,1.5", "four,1.5"), ":3: devices: expected a number of devices, got 'four'"),
        (HOURS.replace("4,1.5", "-4,1.5"), ":3: devices: expected a number of devices of at least 0, got '-4'"),
        (HOURS.replace("4,1.5", "4,-1.5"), ":3: hours: expected a time of at least 0, got '-1.5'"),
        (HOURS.replace("0.5,", "soon,"), ":3: arrival: expected a number or a date, got 'soon'"),
        (HOURS.replace("4,1.5", "4"), ":3: expected 3 cells as its header has, got 2"),
        (HELIOS.replace("2020-06-09 18:41:27,2020", "yesterday,2020"), ":3: submit_time: expected a date such as"),
        (TASKS.replace("200,500", "200,100"), ":2: end_time: expected an end after the begin, got '100'"),
        (
            "arrival,gpus,hours\n0,8,2\n",
            "no column is known to say when jobs come; there are: 'arrival', 'gpus', 'hours'; name it in columns",
        ),
        ("arrival,devices,hours\n0,0,2\n", "it holds no jobs with devices"),
    ],
)
def test_a_wrong_line_is_told_with_its_number(tmp_path, text, sentence):
    with pytest.raises(SpecError) as error:
        read(tmp_path, text)
    assert sentence in str(error.value)


@pytest.mark.parametrize(("seconds", "tries"), [(1, 1), (1, 2), (3600, 2)])
def test_attempts_count_however_short_they_are(tmp_path, seconds, tries):
    """A job runs as long as all its attempts together, and has the devices of the last of them."""
    ends = [(f"2017-10-07 0{hour}:00:00", f"2017-10-07 0{hour + seconds // 3600}:00:{seconds % 3600:02d}") for hour in (1, 4)[:tries]]
    details = [GPUS, GPUS[:1]][-tries:]
    attempts = [{"start_time": begin, "end_time": end, "detail": held} for (begin, end), held in zip(ends, details, strict=True)]
    found = read(tmp_path, json.dumps([{**PHILLY[0], "attempts": attempts}]), "philly.json")
    assert (found.time.tolist(), found.devices.tolist()) == ([1.0 * tries * seconds], [2])


def test_wrong_attempts_are_told(tmp_path):
    wrong = [{**PHILLY[0], "attempts": [{"start_time": 3}]}]
    with pytest.raises(SpecError, match="attempts: expected a list of attempts with start_time, end_time and detail"):
        read(tmp_path, json.dumps(wrong), "philly.json")


# ------------------------------------------------------------------------------------------ draws


def drawn(seed=0, number=0, **given):
    plain = {"arrivals": {"law": "poisson", "rate": "3 1/hour"}, "count": 4000, "devices": 8, "time": "1 h", **given}
    return drawn_jobs(validate(JobsSpec, Document(file="f.yaml", data=plain)), seed, number)


def test_drawn_jobs_have_the_moments_of_their_laws():
    sizes = {"law": "empirical", "values": [1, 8, 64], "weights": [5, 4, 1]}
    found = drawn(devices=sizes, time={"law": "lognormal", "median": "1 h", "p95": "10 h"})
    assert found.arrival[-1] / 4000 == pytest.approx(1200, rel=0.05)
    assert [(found.devices == size).mean() for size in (1, 8, 64)] == pytest.approx([0.5, 0.4, 0.1], abs=0.03)
    assert sorted(found.time)[2000] == pytest.approx(3600, rel=0.1)
    assert sorted(found.time)[3800] == pytest.approx(36000, rel=0.2)


def test_a_seed_and_an_entry_draw_the_same_again_and_no_other_does():
    assert (drawn().arrival == drawn().arrival).all()
    for other in (drawn(seed=1), drawn(number=1)):
        assert (drawn().arrival != other.arrival).any()
    longer = drawn(time={"law": "exponential", "mean": "2 h"})
    assert (drawn().arrival == longer.arrival).all()


@pytest.mark.parametrize(("hours", "problems"), [
    ([1, 2], [f"carbon_by_hour[{i}]: expected a quantity in kg/J, got the bare number {i + 1}; write the unit" for i in range(2)]),
    ([], ["carbon_by_hour: expected at least 1 entry, got []"]),
])  # fmt: skip
def test_a_list_of_wrong_entries_is_not_called_too_short(hours, problems):
    data = {"system": "dgx-h100", "carbon_by_hour": hours, "jobs": [{"devices": 8, "time": "1 h"}]}
    with pytest.raises(SpecError) as found:
        validate(ClusterFile, Document(file="c.yaml", data=data))
    assert [f"{one.path}: {one.message}" for one in found.value.problems] == problems
