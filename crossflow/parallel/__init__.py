"""How a workload is divided over devices, and the program that follows.

`strategy` reads three notations into one `Mesh` with named axes, says what it means for a workload (a graph's mesh, a `Plan`, a
`Hierarchy`), lists the legal ones and holds many of them as arrays (`Layout`). `sharding` decides which rank holds which embedding
table. `transform` makes the `Program` of a graph; `blocks` the kernels and messages of a transformer's layers, one `Block` for each
kind of layer and pass; `repeated` that of imported programs; `materialise` draws the whole super-graph for those who want to see it.

Takes a model and a strategy; gives programs and blocks. Times are of `cost` and `engine`.
"""

# What other wings may import, by module; all else is this wing's own.
DOORS = {
    "blocks": ("ENDS", "LOG_SUM", "MASK", "PHASES", "block_program", "ends_of", "gathers", "parameters", "type_of", "unit_places",
        "unit_starts", "units", "wide_units"),
    "repeated": ("WHOLE", "makes_heads", "repeats", "shares_again", "whole_again"),
    "sharding.pieces": ("Piece", "Sharding", "singles"),
    "sharding.sharders": ("cut", "share_out"),
    "strategy.again": ("Again", "further_levels"),
    "strategy.hierarchy": ("Hierarchy", "Kind"),
    "strategy.layout": ("Layout", "Spread"),
    "strategy.legality": ("plan_problem",),
    "strategy.levels": ("Hierarchies",),
    "strategy.mesh": ("BLOCKS", "Mesh", "OFFLOADS", "ORDER", "Offload", "RECOMPUTE", "REPEATED", "RankBlock", "Recompute", "Role", "Type",
        "divisors", "sizes_text"),
    "strategy.notation": ("DEGREES", "PAPER_KEYS", "PLAN_KEYS", "is_by_types", "parse_any"),
    "strategy.plan": ("OWN_TENSOR", "Plan"),
    "strategy.reading": ("ANY", "AUTO", "AnyStrategy", "GIVEN", "Workload", "as_text", "every_strategy", "fitting", "legal_strategies",
        "near_strategies", "read_strategy", "strategy_problem", "undivided", "worker_plan"),
    "strategy.schedules": ("*", "BACKWARD", "FORWARD", "LETTERS", "NATURAL", "PipelineOrder", "WEIGHT", "ahead", "hold_order",
        "pipeline_order"),
    "strategy.stages": ("Division", "balanced_layers", "stage_layers"),
    "strategy.transformers": ("plan_of",),
    "transform": ("assign_stages", "divided", "transform"),
}  # fmt: skip
