"""How far iterations of jobs are trusted: as far as their least trusted phase, with its band or that of published iterations."""

import pytest
from test_post_training import DPO, GRPO

import crossflow
from crossflow.answers.bands import LEVELS, Likeness, Trust, trust_of
from crossflow.answers.evaluation import job_trust
from crossflow.answers.evaluation.likeness import iterations_of
from crossflow.answers.evaluation.post_training import parts_of, whole_trust


def trusted(data):
    return whole_trust(crossflow.from_dict(data))


def test_a_job_without_answers_has_the_trust_and_the_band_of_its_worst_phase():
    scenario = crossflow.from_dict(DPO)
    phases = [crossflow.predict(one).trust for one in (*parts_of(scenario).named.values(), crossflow.from_dict({**DPO, "job": None}))]
    found = trusted(DPO)
    assert found.level == min((one.level for one in phases), key=LEVELS.index)
    assert found.band.p90 == max(one.band.p90 for one in phases if one.level == found.level)


def test_a_phase_of_an_unknown_kind_makes_the_job_unknown_and_is_named():
    other = trusted({**DPO, "job": {"kind": "distill", "teacher": {"model": "t5-large"}}})
    assert (other.level, other.band) == ("unknown", None)
    assert other.reason.startswith("teacher: no ")


@pytest.mark.parametrize(("level", "band", "tables"), [("measured", True, "post_training"), ("interpolated", False, "serving")])
def test_an_iteration_that_writes_has_the_band_of_published_ones_where_there_is_one(monkeypatch, level, band, tables):
    known = trust_of(Likeness(kind="matrix products", device="h100-sxm", seen="device")).band
    phase = Trust(level=level, band=known.__class__(**{**known.__dict__, "tables": "serving"}), reason="" if level == "measured" else "few")
    published = Trust(level="extrapolated", band=known.__class__(**{**known.__dict__, "tables": "post_training"}) if band else None)
    monkeypatch.setattr(job_trust, "trust", lambda _: phase)
    monkeypatch.setattr(job_trust, "trust_of", lambda *_: published)
    found = trusted(GRPO)
    assert (found.level, found.band.tables) == ("extrapolated", tables)
    assert found.reason == job_trust.NO_LENGTHS


def test_iterations_of_models_are_told_apart_by_their_experts():
    kinds = ["training of dense language models", "training of mixtures of experts"]
    assert [iterations_of(Likeness(kind=kind)).kind for kind in kinds] == [
        "post-training of dense language models", "post-training of mixtures of experts",
    ]  # fmt: skip


def test_all_that_tells_of_a_job_tells_the_same_trust():
    found, told = trusted(DPO), crossflow.predict(crossflow.from_dict(DPO))
    assert told.job["trust_text"] == found.text
    assert told.job["error_band"]["p90"] == found.band.p90 == told.score.error_band["p90"][0]
    assert bool(told.score.trusted[0] == found.level)
    assert crossflow.schedule({"system": {"template": "dgx-h100", "nodes": 1}, "jobs": [
        {"steps": 10, "scenario": {key: value for key, value in {**DPO, "system": None}.items() if value is not None}, "devices": 8}
    ]}).trust.text == found.text  # fmt: skip
