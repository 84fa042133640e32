"""What each kernel and message takes on a device: time, what binds it, traffic and energy, for all design points at once.

`price` is the one way to price a program: rooflines over every level of memory with the best tiling (`roofline`, `tiling`, `waves`),
attention, experts and look-ups by their own laws, messages by algorithm, fabric and shared links (`collectives`, `fabrics`, `network`,
`exchange`), and measured events where a profile has them (`profile`). `passes` has those of a transformer's layers, `machine` is what a
step runs on, `shared_links` what streams of messages that overlap on the same links take longer. `ranks` tells what many ranks do at
once, `nearby` which measured shapes are near.

Takes a program, a placement and an architecture; gives `Prices`. When things start is of `engine`.
"""

# What other wings may import, by module; all else is this wing's own.
DOORS = {
    "attention": ("Calls", "calls_of", "library_attention_costs"),
    "collectives": ("ring_steps",),
    "exchange": ("Exchange", "exchange_time"),
    "experts": ("expert_library", "grouped_costs"),
    "fabrics": ("Fabric", "fabric_of", "path", "path_time"),
    "handovers": ("Handed", "HandedRows", "boundaries", "handed_of"),
    "joined": ("joined",),
    "lookups": ("RADIX",),
    "machine": ("Machine",),
    "nearby": ("near_times",),
    "network": ("CostRows", "LaidGroups", "MessageCosts", "PLACED", "Wires", "message_costs", "message_steps", "route_time"),
    "passes": ("Steps", "between_measured", "optimizer_costs", "steps_of", "weights_measured"),
    "pools": ("PoolEnd", "PoolExchange", "near_each_other", "pool_exchange"),
    "price": ("Prices", "attention_kernels", "fused_attention", "host_calls", "kernel_names", "kernel_parts", "kernel_prices",
        "measured_kernels", "price", "stacked"),
    "profile": ("COLUMNS", "KERNELS", "Key", "LONGEST", "LOOKUPS", "Measured", "PROFILED", "Profile", "SCOPES", "attention_shape",
        "gemm_shape", "kernel_of", "kernel_words", "lookup_shape", "message_shape", "message_size", "nearest", "optimizer_shape", "parties",
        "pass_shape", "profile_at", "profile_event", "read_profile", "system_profile"),
    "ranks": ("ELEMENT", "RankGroup", "SystemDelays", "Times"),
    "roofline": ("KernelCosts", "WIDE", "powered", "product_costs", "resources"),
    "shared_links": ("LinkStream", "LinkUse", "ROUNDING", "USES", "beside", "longer", "longest_busy"),
    "sharding": ("Pricing", "piece_bytes"),
}  # fmt: skip
