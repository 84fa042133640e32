"""Formats of traces of jobs that are recognised by the names of their columns.

Sources, as of November 2026: the READMEs of HeliosData (SC 2021) and AcmeTrace (NSDI 2024), whose job traces have the same names; of
clusterdata, cluster-trace-gpu-v2020 (Alibaba PAI, NSDI 2022), its `pai_task_table.header`, whose `plan_gpu` is in per cent of a device,
and the files of its simulator; of philly-traces (ATC 2019), whose `cluster_job_log` is JSON with a list of attempts.
"""

from __future__ import annotations

from crossflow.workload.requests.formats import TraceFormat

JOB_FORMATS = (
    TraceFormat(name="crossflow", needs={"arrival": "arrival_s", "devices": "devices", "time": "time_s"},
        may={"kind": "class", "slice": "slice"}),
    TraceFormat(name="hours", needs={"arrival": "arrival", "devices": "devices", "hours": "hours"}, may={"kind": "class"}, unit="h"),
    TraceFormat(name="Acme", needs={"arrival": "submit_time", "devices": "gpu_num", "time": "duration", "kind": "type"}),
    TraceFormat(name="Helios", needs={"arrival": "submit_time", "devices": "gpu_num", "time": "duration"}, may={"kind": "vc"}),
    TraceFormat(name="Alibaba PAI, simulator", needs={"arrival": "submit_time", "devices": "num_gpu", "time": "duration"},
        may={"instances": "num_inst"}),
    TraceFormat(name="Alibaba PAI, tasks",
        needs={"arrival": "start_time", "end": "end_time", "percent": "plan_gpu", "instances": "inst_num"}, may={"kind": "task_name"}),
    TraceFormat(name="Philly", needs={"arrival": "submitted_time", "attempts": "attempts"}, may={"kind": "vc"}),
)  # fmt: skip
# What columns may be called that a user names, by what they say.
JOB_ROLES = ("arrival", "devices", "time", "kind")
