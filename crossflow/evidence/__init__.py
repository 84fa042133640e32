"""What real machines and real code say: measurements, traces, PyTorch modules and training scripts.

`validation` predicts measured tables and writes bands of errors; `calibration` fits a system's parameters to tables and logs; `replay`
reads traces of real steps, explains them and replays them with changes; `torch` records a PyTorch model as a `Program`, `jax` reads
texts of XLA as such, `emulation` runs a training script on one real rank of many, `measurement` takes the microbenchmarks of this
machine. `torch`, `emulation` and `measurement` need the extra `torch`, and to lower a function of JAX needs the extra `jax`.

Takes what was measured; gives programs, parameters, and how far predictions can be trusted.
"""

# What other wings may import, by module; all else is this wing's own.
DOORS = {
    "calibration.calibrate": ("calibrate", "reasons"),
    "calibration.learned": ("fill", "learn"),
    "calibration.logs": ("LogOptions",),
    "calibration.writing": ("check_system", "learned_text", "write_system"),
    "emulation.delays": ("delays_of",),
    "emulation.processes": ("RunOutcome", "RunSettings", "check_ranks", "emulate", "missing"),
    "emulation.program": ("recorded_program",),
    "emulation.record": ("CallRecord", "part_of", "read_record", "record_in", "write_record"),
    "emulation.replay": ("replay",),
    "emulation.what_if": ("read_what_if",),
    "jax.importer": ("import_text", "is_xla_text"),
    "measurement.measure": ("MeasureOptions", "MeasureProgress", "measure"),
    "measurement.results": ("DERIVED", "ROWS", "summary"),
    "replay.breakdown": ("PARTS",),
    "replay.clocks": ("aligned",),
    "replay.events": ("is_traces",),
    "replay.execution": ("joined", "read_executions"),
    "replay.graph": ("graph_of",),
    "replay.kernels": ("plain_name",),
    "replay.kineto": ("read_traces",),
    "replay.overheads": ("overheads_of", "read_overheads", "write_overheads"),
    "replay.program": ("traced_program",),
    "replay.reach": ("KernelLoss",),
    "replay.report": ("LARGEST", "TraceReport", "accuracy", "not_replayed", "report_of", "report_on"),
    "replay.timeline": ("traced_timeline",),
    "torch.importer": ("record",),
    "torch.installed": ("require_torch",),
    "validation.changes": ("SHOWN", "effects"),
    "validation.comparison": ("validate",),
    "validation.dropping": ("droppable",),
    "validation.left_out": ("leave_out",),
}  # fmt: skip
