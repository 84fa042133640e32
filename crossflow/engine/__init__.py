"""When everything starts and ends: priced operations become a step.

The modules here are the engine itself: in-order streams as a longest path over segments (`schedule`, `streams`, `tasks`), blocks that
repeat as max-plus matrices (`maxplus`, `loops`), kinds of ranks where devices differ (`kinds`), and a plain event engine for what
cannot be ordered beforehand (`events`); on what both can do they agree to the last digit. `timeline` holds slots of a pipeline and what
every device does and when. `step` runs layered models: passes, pipelines, gradients, offloading, memory and services.

Takes prices; gives makespans, `Outcome`, `Timeline` and events.
"""

# What other wings may import, by module; all else is this wing's own.
DOORS = {
    "events": ("run_shared",),
    "kinds": ("Kinds", "kinds_of", "split"),
    "loops": ("COPIES",),
    "schedule": ("Schedule", "durations", "longest_path", "of_class", "schedule"),
    "step.batches": ("laid_out", "overlaps"),
    "step.dlrm": ("DlrmStep", "dlrm_job", "dlrm_memory", "dlrm_outcome", "dlrm_prices", "dlrm_program", "model_flops"),
    "step.dlrm_point": ("NODE", "NODES", "point_program"),
    "step.handovers": ("boundaries",),
    "step.memory": ("KINDS", "Memory", "host_share", "memory"),
    "step.offload": ("kept_on_host",),
    "step.outcome": ("BREAKDOWN", "Machine", "Outcome"),
    "step.passes": ("optimizer_costs",),
    "step.remedies": ("Remedy", "remedies"),
    "step.service": ("Prefill", "Service", "TAILS", "guessed", "steady_state"),
    "step.task": ("COLLECTIVES", "StepTables", "task_of"),
    "step.timeline": ("transformer_timeline",),
    "step.transformer": ("FIGURES", "transformer_step"),
    "step.uneven": ("EVEN", "Uneven", "check_places", "load_uneven"),
    "tasks": ("Copy", "PriceRows", "Task", "copies", "tasks_of"),
    "timeline.flat": ("Run", "timeline_of"),
    "timeline.pipeline": ("walk_of",),
    "timeline.record": ("ACTIVITIES", "CHUNK", "COMPUTE", "DATA", "Device", "Events", "HOST", "MODELLED", "PIPELINE", "PassEvents",
        "STREAMS", "TENSOR", "Timeline", "WAIT", "WORK"),
}  # fmt: skip
