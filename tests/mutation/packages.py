"""Which tests answer for a package."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CASES = 16  # of a test with more, as many are shown a mutant
RECORDED = "recorded"  # the predictions that are recorded, which answer for every package, with all of their cases
LONG = 3  # seconds of processor time; tests that take as long are not asked
ASKED = 60  # seconds of processor time for which tests are asked about a mutant, the quickest first
LIMIT = 5  # seconds of processor time that a test may take beyond five times what it takes

TESTS = {
    "cost": "cost_anchors energy_anchors sharding_anchors offload_anchors emulation collectives fabrics roofline tiling waves lookups "
    "nearby one_price spread software events_list attention_kernels experts expert_overlap products power unlike shared_links "
    "wide_experts tiers tier_anchors host_times faster_links expert_anchors chunk_anchors step_anchors second_memory_anchors",
    "program": "program_anchors program operations engine lookups statespace dlrm_program blocks windows formats transform replay_kernels "
    "embedding experts wide_experts jax_texts jax_calls",
    "engine": "engine_anchors engine dlrm events schedule sharded physics context transform unlike",
    "engine/timeline": "pipeline arrays timeline trace compare distsim schedules job_timelines cli_timeline",
    "hardware/mapping": "placement topology rings spread links plan collectives congestion congestion_services flows slices shared_links",
    "hardware/architecture": "architecture_anchors voltage_anchors evaluate generator templates datasheet chips voltage power divisions "
    "price operating software paths switching tiers on_chip_only tier_anchors pools structured slips makers datatypes silicon",
    "parallel/strategy": "strategy_anchors plan strategy strategies notations hierarchy schedules layer_types stages redivision sharding "
    "unlike",
    "parallel": "step_anchors offload_anchors zero_anchors chunk_anchors cross_anchors sharding_anchors dlrm_anchors strategy_anchors "
    "transformer_step memory dlrm dlrm_program mtp offload blocks windows stages recomputed transform repeated_modules sharding "
    "expert_overlap materialise sparse statespace rwkv adapters served_adapters families pass_anchors cache_anchors table_anchors tiers "
    "torch_layers",
    "workload/requests": "requests_draws requests_reading requests_cli requests_scenario requests_fields",
    "engine/service": "service_events serve fleets fleet_scenarios requests_scenario swapping served_adapters expert_pools "
    "rising_rates images arriving router_anchors",
    "engine/lasting": "lasting jitter lasting_runs saving validation_goodput lasting_shown",
    "engine/cluster": "cluster cluster_events cluster_slices cluster_sharing",
    "answers/evaluation": "evaluate chips post_training phases lasting lasting_runs requests_scenario distance replayed_points "
    "lasting_shown "
    "job_trust faster_links rising_rates serve serving congestion congestion_services images misleading",
    "evidence/replay": "advice replay replay_batch trace clocks crowd engine_traces execution_traces nsight replay_kernels launch_mending "
    "evidence_anchors",
    "engine/runs": "step_anchors offload_anchors chunk_anchors cross_anchors zero_anchors dlrm_anchors transformer_step memory dlrm "
    "dlrm_program mtp offload sharded links timeline windows context serving expert_overlap recomputed unlike shared_links serve "
    "wide_experts expert_pools sharding_anchors tiers tier_anchors program rising_rates faster_links draft_anchors engine_anchors "
    "arriving events_list",
    "hardware/technology": "technology silicon shaping structured generator voltage voltage_anchors datatypes",
    "workload": "workload models huggingface families shared_block adapters diffusion statespace rwkv released dimensions dlrm memory "
    "variants transformer_step switches pass_anchors images",
    "workload/cluster": "cluster_reading cluster",
    "answers": "bands prediction uses scenario settings columns context datatypes dimensions comparing outputs names switches workers "
    "roofline job_trust places misleading limits python_guesses score_anchors",
    "answers/catalogue": "known_names python_guesses release init",
    "answers/cluster": "cluster cluster_sharing",
    "answers/explanation": "sensitivity uncertainty parameters decisions evaluate uses paths explore_scenario job_explanations datatypes "
    "unlike",
    "answers/fleets": "fleet_search fleet_scenarios fleets",
    "answers/interactive": "interactive python_guesses",
    "answers/planning": "planning plan cli_cures comparing diffusion explore_opening strategies job_plans launch_mending",
    "answers/search": "searchers pareto space fronts pools portfolio structured search_study unlike redivision",
    "answers/service": "serving serve service_events requests_scenario fleet_scenarios",
    "answers/steps": "events_list timeline dlrm_program sharding unlike expert_pools congestion serving evaluate dimensions program "
    "replayed_points one_way images answers_anchors",
    "answers/study": "study tables records resume planned_points redivision search_study contents fences fronts hinges locks plots "
    "portfolio parquet sweep_command versions names settings columns plots/plot_kinds plots/plot_files",
    "evidence/calibration": "evidence_anchors calibration calibration_learned nccl_logs",
    "evidence/validation": "validation hindcasts products training_runs published_tables serving_rows services_measured bands left_out "
    "loop_apart attention_kernels dropping validation_post_training earlier kept_tables published_runs power "
    "evidence_anchors",
    "evidence/emulation": "emulation emulation_ledger emulation_replay emulation_measured emulation_cli fences pytorch/emulate "
    "pytorch/emulate_values pytorch/emulate_real pytorch/emulate_checkpoints",
    "evidence/jax": "jax_texts jax_calls",
    "edges/launch": "launch launch_constants launch_difference launch_engines launch_maxtext engine_options cli_launch launch_mending "
    "other_options",
    "edges/trace": "trace compare gantt lasting_shown packed cluster serve",
    "edges/explore": "explore_study explore_scenario explore_server explore_helper explore_offline explore_opening explore_page "
    "explore_shown security parquet planned_points",
}

# Files of tests that ask none of these packages, but the command line, files, errors, documents and the release.
OTHERS = (
    "bench cli cli_words docs errors files first_prediction hints import_without_torch layers madmax_studies money moved "
    "narrow_pages observed platforms provenance python_page scripts signals units"
)

SCRIPTS = "edges/explore/assets"  # the scripts of pages, asked in Node by the tests of tests/javascript
PACKAGES = [*TESTS, SCRIPTS]


def modules_of(package: str) -> list[Path]:
    """Modules of a package of crossflow, without those of the packages in it that are listed for themselves; or scripts."""
    if package == SCRIPTS:
        return sorted((ROOT / "crossflow" / package).glob("*.js"))
    inner = [ROOT / "crossflow" / other for other in TESTS if other.startswith(f"{package}/")]
    found = sorted((ROOT / "crossflow" / package).rglob("*.py"))
    return [path for path in found if not any(path.is_relative_to(folder) for folder in inner)]


def files_of(package: str) -> list[str]:
    """Test files that answer for a package, and its modules, whose examples do."""
    places = (ROOT / "tests" / name for name in [*TESTS[package].split(), RECORDED])
    return [*(str(place.with_name(f"test_{place.name}.py")) for place in places), str(ROOT / "crossflow" / package)]


def every_file() -> list[str]:
    """All test files that need no environment of their own, and the modules of crossflow, whose examples are tests."""
    return [*map(str, sorted((ROOT / "tests").glob("test_*.py"))), str(ROOT / "tests" / "plots"), str(ROOT / "crossflow")]
