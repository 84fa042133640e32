"""Real ranks of one run: messages of rings, and operations that agree or do not."""

import queue

import pytest

from crossflow.base.errors import CrossflowError
from crossflow.evidence.emulation.accounting import CallLedger, Entry, RingGraph, RingMessage, RingRun, Standstill, _check_ring, transfers
from crossflow.evidence.emulation.meeting import Meeting, Meets


def entry(rank, op="all_reduce", size=4096, dtype="float32", group="0", ranks=(0, 1, 2, 3), **more):
    return Entry(rank=rank, group=group, ranks=ranks, op=op, size=size, dtype=dtype, arrival=float(rank), **more)


def test_messages_of_four_ranks_are_those_of_figure_3():
    """N0 sends in every of six steps what it received in the one before, its own chunk first; the rest is one mirror of it."""
    graph = RingGraph.of("all_reduce", 4, (0,))
    sent = [one.chunk for one in graph.messages if one.source == 0]
    received = [one.chunk for one in graph.messages if one.source == 3]
    assert sent == [0, 3, 2, 1, 0, 3]
    assert received == [3, 2, 1, 0, 3, 2]
    assert sent[1:] == received[:-1]


def test_a_message_is_ready_once_what_it_passes_on_has_come():
    run = RingRun(graph=RingGraph.of("all_reduce", 4, (0,)))
    first = RingMessage(source=0, step=0, chunk=0), RingMessage(source=3, step=0, chunk=3)
    assert run.ready() == first
    run.see(first[0])
    with pytest.raises(CrossflowError, match="unexpected message: chunk 3 from rank 0 at step 1 came before chunk 3 from rank 3 at step 0"):
        run.see(RingMessage(source=0, step=1, chunk=3))
    run.see(first[1])
    assert RingMessage(source=0, step=1, chunk=3) in run.ready()


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (RingMessage(source=0, step=0, chunk=0), "chunk 0 from rank 0 at step 0 was already sent"),
        (RingMessage(source=1, step=0, chunk=1), "chunk 1 from rank 1 at step 0 is none of this ring"),
    ],
)
def test_unexpected_messages_are_reported(message, sentence):
    run = RingRun(graph=RingGraph.of("all_gather", 4, (0,)))
    run.see(RingMessage(source=0, step=0, chunk=0))
    with pytest.raises(CrossflowError, match=sentence):
        run.see(message)


@pytest.mark.parametrize("real", [(0,), (0, 1), (0, 5), tuple(range(8))])
def test_messages_that_may_be_sent_carry_a_ring_to_its_end(real):
    graph = RingGraph.of("all_reduce", 8, real)
    run = RingRun(graph=graph)
    while ready := run.ready():
        for message in ready:
            run.see(message)
    assert run.complete
    neighbours = {rank for one in real for rank in (one, (one - 1) % 8)}
    assert len(graph.messages) == 14 * len(neighbours)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_ring_of_a_thousand_ranks_is_checked_in_a_moment():
    _check_ring("all_reduce", 1024, (0, 512))


def told(ledger, *entries):
    """What the last of some calls is told: when it starts, what is wrong, or None."""
    for one in entries:
        operation = ledger.enter(one)
    return str(ledger.failure) if ledger.failure is not None else None if operation is None else operation.start


def test_an_operation_starts_when_the_last_real_rank_has_come():
    ledger = CallLedger(real=(0, 3))
    assert told(ledger, entry(0)) is None
    assert told(ledger, entry(3)) == 3.0
    assert told(CallLedger(real=(0, 7)), entry(0)) == 0.0


def test_calls_of_a_group_may_wait_at_once():
    """Rank 0 is three calls ahead of rank 3, and another group goes on."""
    ledger = CallLedger(real=(0, 1, 3))
    assert told(ledger, *(entry(0, number=i, ranks=(0, 3)) for i in range(3))) is None
    assert told(ledger, entry(0, group="1", ranks=(0, 1)), entry(1, group="1", ranks=(0, 1))) == 1.0
    done = [ledger.enter(entry(3, ranks=(0, 3))).entries[0].number for _ in range(3)]
    assert done == [0, 1, 2]


@pytest.mark.parametrize(
    ("other", "calls"),
    [
        ({"op": "all_gather"}, "all_gather of 4096 B float32"),
        ({"size": 8192}, "all_reduce of 8192 B float32"),
        ({"dtype": "bfloat16"}, "all_reduce of 4096 B bfloat16"),
        ({"how": "with MAX"}, "all_reduce of 4096 B float32 with MAX"),
    ],
)
def test_both_sides_of_a_disagreement_are_named(other, calls):
    ledger = CallLedger(real=(0, 3))
    told(ledger, entry(0), entry(3))
    said = f"rank 0 calls all_reduce of 4096 B float32 at train.py:1, rank 3 calls {calls} at train.py:2"
    found = told(ledger, entry(0, where="train.py:1"), entry(3, where="train.py:2", **other))
    assert found == f"the real ranks disagree in operation 2 of group '0': {said}"


def test_parts_of_an_all_to_all_may_differ_but_both_sides_must_expect_the_same():
    def part(rank, sent, received, size):
        return entry(rank, op="all_to_all", ranks=(0, 3), size=size, sent=sent, received=received)

    ledger = CallLedger(real=(0, 3))
    assert told(ledger, part(0, (4, 8), (4, 12), 16), part(3, (12, 16), (8, 16), 28)) == 3.0
    said = "rank 0 sends 8 B to rank 3 in all_to_all of 16 B float32, which expects 4 B in all_to_all of 28 B float32"
    found = told(ledger, part(0, (4, 8), (4, 12), 16), part(3, (12, 16), (4, 16), 28))
    assert found == f"the real ranks disagree in operation 2 of group '0': {said}"


def test_a_rank_that_has_ended_is_not_waited_for():
    ledger = CallLedger(real=(0, 3))
    ledger.ended(3)
    sentence = "rank 0 waits in operation 1 of group '0', all_reduce of 4096 B float32; rank 3 has ended; it called nothing"
    assert told(ledger, entry(0)) == sentence


def test_patience_ends_with_both_sides():
    ledger = CallLedger(real=(0, 3))
    ledger.enter(entry(0, patience=10.0))
    ledger.check_patience(9.0)
    assert ledger.failure is None
    ledger.check_patience(11.0)
    assert str(ledger.failure) == (
        "rank 0 has waited 10 s in operation 1 of group '0', all_reduce of 4096 B float32; rank 3 has not come; it called nothing"
    )


def test_transfers_meet_by_their_two_ranks_and_their_tags():
    ledger, pair = CallLedger(real=(0, 3)), transfers((0, 1, 2, 3), 3, 0, "send")
    assert pair == (0, 3) == transfers((0, 1, 2, 3), 0, 3, "recv")
    assert told(ledger, entry(0, op="send", ranks=pair, tag=1), entry(0, op="send", ranks=pair, tag=2, size=8)) is None
    assert told(ledger, entry(3, op="recv", ranks=pair, tag=2, size=8)) == 3.0
    assert told(ledger, entry(3, op="recv", ranks=pair, tag=1)) == 3.0
    ledger.ended(3)
    assert told(ledger, entry(0, op="send", ranks=pair)) == (
        "rank 0 waits in operation 1 of group '0', send to rank 3 of 4096 B float32; "
        "rank 3 has ended; its last call was recv from rank 0 of 4096 B float32 with tag 1"
    )


# -------------------------------------------------------------------------------------------- ranks that wait for each other


def still(ledger, rank, *calls, entries=1, answers=0):
    ledger.stand_still(Standstill(rank=rank, entries=entries, answers=answers, calls=frozenset(calls)))
    return ledger.failure


def receives(rank, source):
    return entry(rank, op="recv", ranks=(source, rank), where=f"train.py:{rank}")


def test_ranks_that_wait_for_each_other_are_told_as_soon_as_the_last_stands_still():
    ledger = CallLedger(real=(0, 3))
    told(ledger, receives(0, 3), receives(3, 0))
    assert still(ledger, 0, 0) is None
    assert str(still(ledger, 3, 0)) == (
        "the real ranks wait for each other, and none can go on: "
        "rank 0 waits in operation 1 of group '0', recv from rank 3 of 4096 B float32 at train.py:0, for rank 3; "
        "rank 3 waits in operation 1 of group '0', recv from rank 0 of 4096 B float32 at train.py:3, for rank 0"
    )


def test_a_rank_that_computes_or_has_news_does_not_stand_still():
    ledger = CallLedger(real=(0, 3))
    told(ledger, receives(0, 3), receives(3, 0))
    still(ledger, 0, 0)
    told(ledger, entry(0, op="send", ranks=(0, 3), number=1))  # another thread of rank 0 comes to rank 3
    assert still(ledger, 3, 0, answers=0) is None
    assert still(ledger, 0, 0, entries=2, answers=1) is None


def test_a_cycle_is_found_beside_ranks_that_go_on():
    """1, 2 and 3 wait in a circle while 0 computes; a fourth that waits for 0 is not among them."""
    ledger = CallLedger(real=(0, 1, 2, 3, 4))
    told(ledger, receives(1, 2), receives(2, 3), receives(3, 1), receives(4, 0))
    assert [still(ledger, rank, 0) for rank in (1, 2, 4)] == [None, None, None]
    assert [f"rank {rank} waits" in str(still(ledger, 3, 0)) for rank in range(5)] == [False, True, True, True, False]


def test_a_rank_of_which_one_thread_may_go_on_is_not_in_a_cycle():
    ledger = CallLedger(real=(0, 1, 2))
    told(ledger, receives(0, 1), entry(0, op="recv", ranks=(2, 0), number=1), receives(1, 0))
    still(ledger, 0, 0, 1, entries=2)
    assert still(ledger, 1, 0) is None


def test_ranks_meet_over_a_socket():
    """Each is told when the last is ready and what others give, after several calls at once."""
    meeting, met = Meeting(ledger=CallLedger(real=(0, 3))), queue.SimpleQueue()
    ranks = {rank: Meets(rank=rank, address=meeting.address) for rank in (0, 3)}
    for number in range(2):
        for rank, meets in ranks.items():
            one = entry(rank, number=number, payload=bytes([rank]))
            meets.call(one, lambda start, given, rank=rank, number=number: met.put((number, rank, start, given)))
    assert sorted(met.get(timeout=10) for _ in range(4)) == [
        (0, 0, 3.0, {3: b"\3"}), (0, 3, 3.0, {0: b"\0"}), (1, 0, 3.0, {3: b"\3"}), (1, 3, 3.0, {0: b"\0"}),
    ]  # fmt: skip
    for rank, meets in ranks.items():
        meets.close()
        meeting.ended(rank)
    meeting.close()
