"""Real ranks of one run: messages of rings, and operations that agree or do not."""

import threading

import pytest

from crossflow.emulation.accounting import CallLedger, Entry, RingGraph, RingMessage, RingRun, _check_ring, transfers
from crossflow.emulation.meeting import Meeting, Meets
from crossflow.errors import CrossflowError


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


def test_a_ring_of_a_thousand_ranks_is_checked_in_a_moment():
    _check_ring("all_reduce", 1024, (0, 512))


def together(ledger, *entries):
    """What every rank is told, each from a thread of its own."""
    found = {}

    def ask(one):
        try:
            found[one.rank] = ledger.meet(one)
        except CrossflowError as error:
            found[one.rank] = str(error)

    threads = [threading.Thread(target=ask, args=(one,)) for one in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    return found


def test_an_operation_starts_when_the_last_real_rank_has_come():
    assert together(CallLedger(real=(0, 3)), entry(0), entry(3)) == {0: 3.0, 3: 3.0}
    assert together(CallLedger(real=(0, 7)), entry(0)) == {0: 0.0}


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
    together(ledger, entry(0), entry(3))
    found = together(ledger, entry(0), entry(3, **other))
    said = {0: "rank 0 calls all_reduce of 4096 B float32", 3: f"rank 3 calls {calls}"}
    assert set(found) == {0, 3}
    assert str(ledger.failure).startswith("the real ranks disagree in operation 2 of group '0': ")
    assert all(part in str(ledger.failure) for part in said.values())


def test_a_rank_that_has_ended_is_not_waited_for():
    ledger = CallLedger(real=(0, 3))
    ledger.ended(3)
    sentence = "rank 0 waits in operation 1 of group '0', all_reduce of 4096 B float32; rank 3 has ended; it called nothing"
    assert together(ledger, entry(0)) == {0: sentence}


def test_patience_ends_with_both_sides():
    ledger = CallLedger(real=(0, 3))
    sentence = "rank 0 has waited 0.01 s in operation 1 of group '0', all_reduce of 4096 B float32; rank 3 has not come; it called nothing"
    assert together(ledger, entry(0, patience=0.01)) == {0: sentence}


def test_transfers_meet_by_their_two_ranks():
    ledger, pair = CallLedger(real=(0, 3)), transfers((0, 1, 2, 3), 3, 0, "send")
    assert pair == (0, 3) == transfers((0, 1, 2, 3), 0, 3, "recv")
    assert together(ledger, entry(0, op="send", ranks=pair), entry(3, op="recv", ranks=pair)) == {0: 3.0, 3: 3.0}
    ledger.ended(3)
    assert together(ledger, entry(0, op="send", ranks=pair))[0] == (
        "rank 0 waits in operation 2 of group '0', send to rank 3 of 4096 B float32; "
        "rank 3 has ended; its last call was recv from rank 0 of 4096 B float32"
    )


def test_ranks_meet_over_a_socket():
    meeting = Meeting(ledger=CallLedger(real=(0, 3)))
    found = {}
    threads = [
        threading.Thread(target=lambda rank=rank: found.update({rank: Meets(address=meeting.address)(entry(rank), 10.0 + rank)}))
        for rank in (0, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    meeting.close()
    assert found == {0: 13.0, 3: 13.0}
