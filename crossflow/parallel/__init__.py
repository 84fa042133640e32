"""How a workload is divided over devices, and the program that follows.

`strategy` reads three notations into one `Mesh` with named axes, says what it means for a workload (a graph's mesh, a `Plan`, a
`Hierarchy`: `strategy.kinds`), lists the legal ones and holds many of them as arrays (`Layout`). `sharding` decides which rank holds
which embedding table. `transform` makes the `Program` of a graph, `dlrm` that of a recommendation model; `blocks` has the kernels and
messages of a transformer's layers, one of each kind, `shapes` the stages that they stand in, and `tables` how often each runs.
`weights`, `activations` and `offload` say what devices and their hosts hold. `materialise` draws the whole super-graph.

Takes a model and a strategy; gives programs and what they hold. Times are of `cost` and `engine`.
"""

# What other wings may import, by module; all else is this wing's own.
DOORS = {
    "activations": ("activations",),
    "batches": ("laid_out", "overlaps"),
    "blocks": ("PHASES", "adapter_parameters", "block_program", "ends_of", "parameters", "trained_parameters", "type_of", "unit_places",
        "unit_starts", "units", "wide_units"),
    "caches": ("cache_units", "kv_cache"),
    "dlrm": ("DlrmStep", "Embedding", "RANKS", "dlrm_memory", "dlrm_program", "embedding", "model_flops", "rank_embeddings"),
    "offload": ("Copies", "MASTER", "activations_on_host", "kept_on_host", "master_size", "states_size"),
    "shapes": ("Between", "Occurrence", "Shape", "alike", "chunk_layers", "row_counts", "sequence"),
    "sharding.pieces": ("Piece", "Sharding", "singles"),
    "sharding.sharders": ("PRICED", "cut", "parts_needed", "share_out"),
    "strategy.balance": ("StageLoads", "balanced_by_time"),
    "strategy.again": ("Again", "further_levels"),
    "strategy.hierarchy": ("Hierarchy",),
    "strategy.kinds": ("ANY", "GIVEN", "StrategyLimits"),
    "strategy.layout": ("Layout", "Spread"),
    "strategy.legality": ("plan_problem",),
    "strategy.levels": ("Hierarchies",),
    "strategy.mesh": ("BLOCKS", "FARS", "Mesh", "OFFLOADS", "ORDER", "RECOMPUTE", "REPEATED", "RankBlock", "Recompute", "Role", "Type",
        "divisors", "sizes_text"),
    "strategy.notation": ("DEGREES", "PAPER_KEYS", "PLAN_KEYS", "is_by_types", "opened", "parse_any"),
    "strategy.plan": ("OWN_TENSOR", "Plan"),
    "strategy.plans": ("encoder_plan", "engine_devices", "engine_plans", "experts_plan", "worker_plan"),
    "strategy.reading": ("AUTO", "AnyStrategy", "as_text", "as_texts", "every_strategy", "fitting", "legal_strategies",
        "near_strategies", "read_strategy", "strategy_problem", "undivided"),
    "strategy.schedules": ("*", "BACKWARD", "FORWARD", "LETTERS", "NATURAL", "PipelineOrder", "WEIGHT", "ahead", "hold_order",
        "pipeline_order"),
    "strategy.stages": ("Division", "stage_layers"),
    "strategy.transformers": ("plan_of",),
    "tables": ("COLLECTIVES", "OF", "Sends", "StepTables", "divided_tables", "tables_of"),
    "tiers": ("FarTraffic", "far_share", "far_traffic", "far_update", "placements"),
    "transform": ("assign_stages", "divided", "transform"),
    "weights": ("Weights", "weight_sizes"),
}  # fmt: skip
