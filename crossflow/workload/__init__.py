"""Models, as their files describe them: layers, kernels and what a task does with them.

Takes a preset, dimensions or a `config.json` of Hugging Face (`huggingface`, by the rules of `huggingface.yaml`); gives a `Graph` of
kernels (`lstm`, `gemm`), a `Transformer` of layers, attention, experts and state-space parts (`transformer`, `operations`), or a
`Dlrm` with its tables. `spec` (of recommendation models `dlrm_spec`, of services `serving_spec`) is the file model with the meaning of
every field, `traits` what all of them answer, `kinds` their list; `contradictions` are keys of it that do not go together, and
`described` makes its model. `job` is a model at work: batch, sequence, task; `conventions`, `released`, `model_names`, `quantised`
and `towers` read what makers publish. `idle` tells fields without effect.

A model knows neither devices nor strategies.
"""

# What other wings may import, by module; all else is this wing's own.
DOORS = {
    "adapters": ("used_by",),
    "attended": ("FORMS",),
    "cluster.draws": ("drawn_jobs",),
    "cluster.reading": ("read_jobs",),
    "cluster.record": ("JobTrace",),
    "cluster.spec": ("ClusterFile", "JobsSpec", "MOST_JOBS", "sizes_of"),
    "dlrm": ("DLRM_LAYERS", "Dlrm", "DlrmJob", "DlrmLayer", "Linear", "SHARDERS", "SPLITS", "Sharder", "ShardingRule", "TableSplit",
        "Tables"),
    "dlrm_spec": ("DlrmSpec", "ReuseSpec"),
    "fleet": ("AutoscaleSpec", "FailuresSpec"),
    "graph": ("Graph", "GraphLayer", "Node", "Size"),
    "huggingface": ("families_of_files", "huggingface_document", "tower_of"),
    "idle": ("ONLY_REPLAYED", "of_other_tasks", "without_meaning"),
    "job": ("Chunk", "Draft", "ImageTower", "Job", "JobTask"),
    "jobs": ("dlrm_job", "job_of", "tokens_of"),
    "kinds": ("MODELS", "Workload"),
    "model_names": ("ModelNames", "model_names", "published_as"),
    "operations": ("*",),
    "released": ("CONFIG", "MTP_NOTE", "SERVED", "as_released", "file_notes", "release_notes", "unsaid_types"),
    "requests.asking": ("AskedRequests", "files_of", "found_file", "mean_rate", "means", "requests_in"),
    "requests.describe": ("DescribedRequests", "LengthSpread", "TARGETS"),
    "requests.post_training": ("FurtherModelSpec", "JobPhase", "PostTrainingSpec", "RolloutSpec"),
    "requests.laws": ("normal_of",),
    "requests.picture": ("rate_line",),
    "requests.record": ("RequestTrace", "request_times"),
    "requests.shared": ("shared_blocks",),
    "requests.spec": ("RequestsSpec", "TIMES", "draws"),
    "requests.tables": ("ENDINGS", "ending"),
    "requests.words": ("lasting",),
    "requests.writing": ("KINDS",),
    "sides": ("both_sides", "feeds"),
    "serving_spec": ("BesideSpec", "HostCacheSpec", "ServingSpec"),
    "spec": ("GemmSpec", "ImageSpec", "LstmSpec", "ProgramSpec", "TransformerSpec"),
    "stacked": ("chosen", "stacked", "structures"),
    "statespace": ("GATED", "SELECTIVE", "StateSpace", "UPDATE"),
    "traits": ("WorkloadSpec",),
    "transformer": ("AttentionGeometry", "Cut", "FEED_FORWARD", "Layer", "Matrix", "Part", "Routing", "Selection", "Transformer"),
}  # fmt: skip
