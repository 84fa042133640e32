"""Orders of passes against those of PyTorch's own schedules, which its ranks work out without running anything."""

from collections import Counter

import pytest

from crossflow.parallel.strategy.schedules import LETTERS, pipeline_order

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W"}
SHAPES = [(2, 1, 4), (4, 1, 8), (2, 2, 4), (4, 2, 8), (4, 3, 12), (3, 2, 3), (8, 2, 32)]


def order_of(kind, stages, chunks, microbatches):
    """Slots of every rank of a schedule of PyTorch, as kind, stage of the model and microbatch."""
    made = object.__new__(kind)
    made.pp_group_size, made.n_local_stages, made._n_microbatches = stages, chunks, microbatches
    made.number_of_rounds = max(1, microbatches // stages)
    made.microbatches_per_round = microbatches // made.number_of_rounds
    every = [[action for action in made._calculate_single_rank_operations(rank) if action is not None] for rank in range(stages)]
    return [[(KINDS[one.computation_type.name], one.stage_index, one.microbatch_index) for one in rank] for rank in every]


@pytest.mark.parametrize(
    ("stages", "chunks", "microbatches"), [(2, 1, 4), (4, 1, 8), (2, 2, 4), (4, 2, 8), (4, 3, 12), (3, 2, 3), (8, 2, 32)]
)
@pytest.mark.parametrize(("ours", "theirs"), [("zb-h1", "ScheduleInterleavedZeroBubble"), ("1f1b", "ScheduleInterleaved1F1B")])
def test_ranks_run_their_passes_in_the_order_of_pytorch(ours, theirs, stages, chunks, microbatches):
    if ours == "1f1b" and chunks == 1:
        pytest.skip("PyTorch has another schedule for one chunk a rank")
    made = pipeline_order(ours, stages, chunks, microbatches)
    mine = [[(LETTERS[kind], row, microbatch) for kind, row, microbatch in slots.tolist()] for slots in made.slots]
    known = order_of(getattr(schedules, theirs), stages, chunks, microbatches)
    assert [Counter(rank) for rank in mine] == [Counter(rank) for rank in known]
    assert mine == known
