"""When everything starts and ends: priced operations become a step.

The modules here are the engine itself: in-order streams as a longest path over segments (`schedule`, `streams`, `tasks`), blocks that
repeat as max-plus matrices (`maxplus`, `loops`), kinds of ranks where devices differ (`kinds`), and a plain event engine for what
cannot be ordered beforehand (`events`); on what both can do they agree to the last digit. `timeline` holds slots of a pipeline and what
every device does and when. `service` replays requests through serving engines, event by event; `lasting` are runs of months that fail and
come back; `cluster` gives jobs of a cluster their devices. `runs` are what runs on the engine: steps of transformers and of
recommendation models, programs, services in steady state.

Takes prices; gives makespans, `Outcome`, `Timeline`, `ServiceReplay` and events.
"""

# What other wings may import, by module; all else is this wing's own.
DOORS = {
    "cluster.account": ("ClusterAccount",),
    "cluster.events": ("scheduled",),
    "cluster.record": ("ClusterJobs", "ClusterRoom", "ScheduledCluster", "SchedulerPolicy"),
    "kinds": ("Kinds", "kinds_of", "split"),
    "lasting.events": ("RunHistory", "RunSpan", "history", "in_turn", "undisturbed"),
    "lasting.intervals": ("best_interval",),
    "lasting.jitter": ("exceeded", "slowest"),
    "lasting.record": ("FailureCause", "JITTER", "Jitter", "KINDS_OF_TIME", "LongRun", "NEVER_FAILS", "PLANNED", "SlowCause",
        "TimeShares"),
    "lasting.renewal": ("best_spares", "expected", "first_of_bursts"),
    "lasting.saving": ("written_beside",),
    "lasting.spec": ("CheckpointSpec", "JitterSpec", "MaintenanceSpec", "Reliability", "ReliabilitySpec", "RestartSpec", "UNBROKEN",
        "common", "load_named", "load_reliability", "rates"),
    "runs.apart": ("ExpertPool", "PooledStep"),
    "runs.dlrm": ("dlrm_outcome", "dlrm_prices", "dlrm_step"),
    "runs.dlrm_point": ("NODE", "NODES", "point_program", "point_programs"),
    "runs.dlrm_sharded": ("chosen", "joined_outcomes", "rank_rows", "sharded_outcome"),
    "runs.memory": ("CACHE", "KINDS", "Memory", "WEIGHTS", "memory"),
    "runs.outcome": ("BREAKDOWN", "Outcome", "TAILS"),
    "runs.programs": ("launches", "program_outcome", "table"),
    "runs.service": ("NO_ROOM", "OVERRUN", "Prefill", "Service", "Steady", "at_rest", "cache_room", "guessed",
        "sending_over", "steady_state"),
    "runs.service_table": ("Reach", "Replicas", "step_table"),
    "runs.timeline": ("transformer_timeline",),
    "runs.transformer": ("FIGURES", "run_layers", "transformer_step"),
    "runs.unlike": ("KindWork", "UnlikePlans", "unlike_plans", "unlike_step"),
    "runs.unlike_prices": ("DeviceKind",),
    "runs.unlike_timeline": ("unlike_timeline",),
    "runs.uneven": ("EVEN", "Uneven", "check_places", "load_uneven"),
    "schedule": ("durations", "longest_path", "of_class", "schedule"),
    "service.adapters": ("AdapterSlots",),
    "service.cache": ("PrefixCache",),
    "service.encoders": ("EncoderTimes", "encoder_work"),
    "service.fleet": ("EnginePool", "Readers", "Tallied", "replay", "replay_tallied"),
    "service.policies": ("POLICIES", "policy_of"),
    "service.replayed": ("Jumps", "ServiceReplay"),
    "service.replica": ("Replica",),
    "service.routers": ("router",),
    "service.sketch": ("Batches", "ERROR", "Sketch"),
    "service.standing": ("Failures", "Scaling"),
    "service.steps": ("StepTable",),
    "service.tally": ("KindTally", "Tally"),
    "service.ticket": ("Limits",),
    "tasks": ("Copy", "PriceRows", "Task", "copies", "tasks_of"),
    "timeline.flat": ("Run", "timeline_of"),
    "timeline.pipeline": ("walk_of",),
    "timeline.record": ("ACTIVITIES", "CHUNK", "COMPUTE", "DATA", "Device", "Events", "FROM_HOST", "HOST", "MODELLED", "PIPELINE",
        "PassEvents", "STREAMS", "TENSOR", "Timeline", "WAIT", "WORK"),
}  # fmt: skip
