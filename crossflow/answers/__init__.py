"""From a scenario to what people ask of it.

`scenario` reads files, data and settings (`scenario_file` has their keys, `sections` reads each section, `meaning` says what they mean
together). `steps` puts a scenario together: what it computes, on the devices that it has. `evaluate(scenario, points)` (`evaluation`)
runs such a step for all points and gives a `Score`, whose figures stand beside their trust (`bands`). On it stand a `Prediction` with
all that one point has to say, `uses` and `idle` (what waits for a resource, which settings change nothing), `search` (spaces, objectives,
searchers), `explanation` (elasticities, what-ifs, uncertainty), `fleets` (the cheapest engines for requests), `planning` (the best
strategies, comparisons, and the names of the Python interface), `cluster` (jobs that share one), `study` (sweeps and searches as tables,
plots and a record) and `interactive` (the same from Python without a file). `catalogue` says what is shipped.

Takes names, files and settings; gives results that can say themselves as data, tables and pictures.
"""

# What other wings may import, by module; all else is this wing's own.
DOORS = {
    "bands": ("Band", "CHIPS", "FEWEST", "GENERATED", "LAYOUTS", "Likeness", "NO_STACK", "PairSpread", "SHARED", "TRAITS", "Trust",
        "UNMEASURED_CHIP", "candidates", "experts_of", "load_of", "scale_of", "ties", "type_of"),
    "catalogue.examples": ("TUTORIAL", "command_of", "example", "examples", "needed"),
    "catalogue.listing": ("Listing", "entries"),
    "catalogue.sheets": ("Figure", "Sheet", "look_up"),
    "cluster.schedule": ("ScheduledJobs", "schedule"),
    "evaluation": ("evaluate",),
    "evaluation.events": ("Event", "EventList", "events"),
    "evaluation.lasting": ("drawn",),
    "evaluation.likeness": ("AROUND", "PROMPTS", "TOKENS", "WATTS", "featured", "iterations_of", "kind_of", "likeness", "seen"),
    "evaluation.post_training": ("whole_trust",),
    "evaluation.remedies": ("Remedy",),
    "evaluation.replay_figures": ("replayed_figures",),
    "evaluation.replay_statistics": ("spread",),
    "evaluation.timelines": ("simulate",),
    "explanation.answers": ("Change", "DIVIDED", "Decision", "Effect", "Explanation", "NextBottleneck", "WhatIf"),
    "explanation.decisions": ("better_moves", "better_strategies"),
    "explanation.designs": ("AUTO", "Design", "best_first", "chosen_first", "discrete_of", "fastest", "ranked", "read_design", "thinned",
        "written"),
    "explanation.dividing": ("count_path", "legal", "nearest", "undecided"),
    "explanation.moves": ("names_of",),
    "explanation.parameters": ("Parameter", "ParameterGroup", "in_use", "parameters"),
    "explanation.sensitivity": ("explain", "other_strategies"),
    "explanation.tornado": ("draw", "in_words", "tornado"),
    "fleets.ranking": ("Fleets", "RankedFleet", "check_of_fleets", "plan_fleets"),
    "interactive.sweeps": ("sweep", "swept_paths"),
    "planning.asking": ("asked", "serve"),
    "planning.comparing": ("ComparedSystem", "ComparedSystems", "compared", "prices_of"),
    "planning.foreign": ("instead_of",),
    "planning.opening": ("Overrides", "ScenarioSource",  "data_of", "load", "unplanned"),
    "planning.planner": ("plan",),
    "planning.plans": ("Plans", "RankedPlan", "follows_from_time"),
    "planning.requesting": ("section_of",),
    "planning.question": ("INSTEAD", "Question", "names_program", "of_template"),
    "points": ("variant", "varied", "written"),
    "prediction": ("Prediction", "predict"),
    "scenario": ("SYSTEM_KINDS", "Scenario", "check_steady", "check_strategy", "from_dict", "from_document", "load",
        "requests_of", "spelled_out"),
    "score": ("MARGIN", "Score", "larger_is_better", "no_column", "unit_of", "words"),
    "search.driver": ("search",),
    "search.goals": ("Constraint", "Objective"),
    "search.pareto": ("non_dominated",),
    "search.problem": ("SearchProblem",),
    "search.settings": ("GradientSettings",),
    "search.shares": ("SHARES",),
    "sections": ("model_name", "presets"),
    "service.served": ("ServedRequests",),
    "settings": ("*",),
    "study.findings": ("cells", "header", "reach_of_ties"),
    "study.parquet": ("ParquetPoints", "rows"),
    "study.reading": ("locate", "read_study"),
    "study.records": ("PARQUET", "POINTS", "RUN", "TABLE", "held_in"),
    "study.run": ("StudyResult", "run_study"),
    "study.schema": ("schema",),
    "study.searches": ("Reporter",),
    "study.spaces": ("read_space",),
    "study.spec": ("SpacedRange", "StudyFile", "spaced"),
    "workers": ("in_order", "workers"),
}  # fmt: skip
