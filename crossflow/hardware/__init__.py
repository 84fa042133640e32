"""Devices and the networks between them, from a technology library and budgets, or from datasheets.

`technology` reads what can be built: logic nodes, memories, links, with area, power, voltage, energy and speed, scaled and gathered for
a batch of design points. `architecture` makes an `Architecture` of it: divided and operated by the generator where a template is one
of budgets, taken as published where it is a datasheet; with the software stack on it (`software`, `execution`), its packaging, its
price and what a run costs. `mapping` lays the axes of a mesh on a topology: routes, and how many edges share a link.

Takes YAML and arrays of budgets; gives frozen `Architecture` and `Placement`. It knows nothing of models.
"""

# What other wings may import, by module; all else is this wing's own.
DOORS = {
    "architecture.datasheet": ("OF_DATASHEETS", "REFERENCE_UNIT", "of_a_datasheet", "sizing_types"),
    "architecture.datatypes": ("priced",),
    "architecture.divisions": ("*", "ROLES", "shares"),
    "architecture.execution": ("AttentionLibraryName", "DecodeKernel", "ExchangeKernel", "ExchangeLibraryName", "ExpertLibrary",
        "FusedKernel", "LatentKernel", "PrefillKernel", "ProductLibrary", "Quantising",
        "TileExecution", "USUAL", "WideningLibrary", "preferred", "width_rate"),
    "architecture.generator": ("for_choices",),
    "architecture.model": ("Architecture", "BudgetUse", "Level", "Port", "Repeats", "SecondMemory"),
    "architecture.network": ("CLOS", "FABRIC_TOPOLOGY", "FabricKind", "FabricParameters", "NetworkLevel", "NetworkSpec", "Congestion",
        "JobTraffic", "NeighbourJob", "TAIL"),
    "architecture.run_cost": ("DAY", "KILOWATT_HOUR", "RunCost", "load_of", "node_power", "normalised", "operation_of", "product",
        "run_cost"),
    "architecture.shaping": ("own_value",),
    "architecture.software": (
        "AttentionChoice", "EngineHabits", "Fusion", "Module", "PeerAllReduce", "QueueOrder", "SoftwareStack", "UNSCHEDULED",
        "load_stack", "maker",
    ),
    "architecture.switching": ("of_their_number",),
    "architecture.system": ("PLAIN", "TEMPLATES", "architecture", "asked_system", "kind_of_system", "reference_peak", "resolve",
        "template_name"),
    "architecture.connected": ("systems_of", "unconnected"),
    "architecture.template": ("BUDGETS", "DatasheetSystem", "ENCODING", "Ends", "FEEDING", "GeneratedSystem", "Host", "READING",
        "SystemSpec", "fills", "is_none", "part_of_nodes"),
    "architecture.voltage": ("throttled",),
    "mapping.placement": ("AxisRoute", "GROUP", "Placement", "layouts", "level_bandwidths", "pair_route", "place", "place_group"),
    "mapping.rings": ("has_chain", "rings"),
    "mapping.congestion": ("DevicePart", "Pattern", "Slowdown", "in_order", "refusal", "slowdown"),
    "mapping.flows": ("FlowPaths", "max_min"),
    "mapping.slices": ("SliceGround", "SliceShape", "slice_ground", "text_of"),
    "mapping.spread": ("LinkSpread",),
    "mapping.topology": ("GROUPED", "Network", "Topology"),
    "mapping.wiring": ("ANY_WIRING", "LEVELS", "WhichLevel", "switched", "topology_of", "wired"),
    "technology.components": ("Compute", "Link"),
    "technology.library": ("Choice", "KINDS", "TechLibrary", "kind_of", "library_digest", "library_document", "load_library"),
}  # fmt: skip
