"""Emulation without torch: what-ifs, delays, queues, slower ranks."""

import re

import numpy as np
import pytest

from crossflow.base.errors import CrossflowError
from crossflow.cost.network import Wires
from crossflow.evidence.emulation.delays import SystemDelays, _interpolated, delays_of
from crossflow.evidence.emulation.link import Fifo, Pace
from crossflow.evidence.emulation.what_if import Delay, Slow, read_what_if
from crossflow.program.groups import Group

DELAY = Delay(time=10e-3, latency=2e-3)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("", 10e-3),
        ("all_reduce+2ms", 12e-3),
        ("all_reduce*1.5", 15e-3),
        ("all+2ms", 12e-3),
        ("all_gather+2ms", 10e-3),
        ("bandwidth*0.5", 18e-3),
        ("latency+5us", 10.005e-3),
        ("latency*2, bandwidth*2", 8e-3),
        ("all_reduce+2ms,bandwidth*0.5", 20e-3),
    ],
)
def test_what_ifs_change_latency_and_the_rest(text, time):
    assert read_what_if(text)("all_reduce", DELAY).time == pytest.approx(time)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("all_redcue+2ms", "what-if 'all_redcue+2ms': unknown word 'all_redcue'; did you mean 'all_reduce'?; known words: "),
        ("all_reduce", "what-if 'all_reduce': expected a word, + or *, and a value, such as all_reduce+2ms or bandwidth*0.5"),
        ("all_reduce+2", "what-if 'all_reduce+2': expected a quantity in s, got the bare number 2; write the unit"),
        ("bandwidth+1ms", "what-if 'bandwidth+1ms': bandwidth takes a factor, such as bandwidth*0.5"),
        ("all*0", "what-if 'all*0': expected a value above zero, got 0"),
        ("rank*2", "what-if 'rank*2': ranks are given as rank[7]*1.2 or rank[0-3,8]+1ms, and to no other word"),
        ("rank[a]*2", "what-if 'rank[a]*2': expected ranks such as 0,7 or 0-3, got 'a'"),
    ],
)
def test_a_wrong_what_if_is_refused(text, sentence):
    with pytest.raises(CrossflowError) as caught:
        read_what_if(text)
    assert str(caught.value).startswith(sentence)


def test_only_emulated_ranks_of_the_world_can_be_slower():
    with pytest.raises(CrossflowError, match="there is no rank 8 in a world of 8"):
        read_what_if("rank[8]*2").check_ranks(8, (0,))
    with pytest.raises(CrossflowError, match="rank 0 runs for real; only an emulated rank can be made slower"):
        read_what_if("rank[0-3]*2").check_ranks(8, (0,))


def test_delays_of_a_system_are_those_of_its_collectives():
    delays = delays_of(64, "dgx-h100")
    assert isinstance(delays.system.wires, Wires)
    group = Group.alike(64, 8, 1)
    known = float(delays.system.wires.time("all_reduce", np.array([1e8]), group)[0])
    assert delays.base("all_reduce", 100_000_000, tuple(range(64))).time == pytest.approx(known)


def test_half_the_bandwidth_is_a_system_with_links_of_half_the_rate():
    """What-ifs divide what is not latency; on links that reach their rate this is the system's own law."""
    fast, slow = (delays_of(8, one).base("all_reduce", 10**8, tuple(range(8))) for one in ("dgx-h100", "dgx-a100"))
    assert read_what_if("bandwidth*0.5")("all_reduce", fast).time == pytest.approx(2 * fast.time - fast.latency)
    assert fast.time < slow.time


def test_groups_inside_a_node_are_faster_and_queue_for_another_wire():
    delays = delays_of(64, "dgx-h100")
    inside, across = tuple(range(8)), tuple(range(0, 64, 8))
    assert delays.base("all_gather", 10**8, inside).time < delays.base("all_gather", 10**8, across).time
    assert [delays.wire("all_gather", "3", ranks) for ranks in (inside, across)] == ["intra", "inter"]
    assert delays_of(64, "dgx-h100", link="group").wire("all_gather", "3", inside) == "3"
    assert delays.wire("send", "3", (0, 8)) == "inter.send"


def test_pairs_of_a_torus_are_as_far_as_their_way():
    delays = delays_of(64, "tpu-v4-pod")
    assert delays.base("recv", 1, (0, 1)).time < delays.base("recv", 1, (0, 42)).time


def test_a_group_that_does_not_fill_a_torus_is_refused():
    with pytest.raises(CrossflowError, match="groups of 3 ranks do not fill 64 devices, on which their links depend"):
        delays_of(64, "tpu-v4-pod").base("all_reduce", 1024, (0, 1, 2))


def test_a_group_of_one_takes_no_time():
    assert delays_of(8, "dgx-h100").base("all_reduce", 10**9, (3,)) == Delay(time=0.0, latency=0.0)


# -------------------------------------------------------------------------------------------- files


def written(folder, text):
    path = folder / "delays.yaml"
    path.write_text(f"kind: delays\n{text}", encoding="utf-8")
    return str(path)


TABLE = "tables:\n  - {op: all_reduce, ranks: 2, points: [[1 kB, 1 ms, 1 us], [2 kB, 3 ms, 5 us]]}\n"


def test_tables_are_interpolated(tmp_path):
    delays = delays_of(2, file=written(tmp_path, TABLE))
    found = [delays.base("all_reduce", size, (0, 1)).time for size in (10, 1000, 1500, 2000, 3000)]
    assert found == pytest.approx([1e-3, 1e-3, 2e-3, 3e-3, 5e-3])
    assert delays.base("all_reduce", 1500, (0, 1)) == Delay(time=2e-3, latency=1e-3, host=3e-6)


def test_what_no_table_has_comes_from_the_system_or_is_refused(tmp_path):
    with pytest.raises(
        CrossflowError, match="no delay is known of broadcast among 2 ranks; the delays have all_reduce of 2; give --system"
    ):
        delays_of(2, file=written(tmp_path, TABLE)).base("broadcast", 10, (0, 1))
    both = delays_of(8, "dgx-h100", written(tmp_path, TABLE))
    assert both.base("broadcast", 10, (0, 1)) == delays_of(8, "dgx-h100").base("broadcast", 10, (0, 1))


def test_a_function_of_the_users_gives_delays(tmp_path):
    (tmp_path / "mine.py").write_text("def delay(op, size, ranks):\n    return 1e-3 * len(ranks), size * 1e-9\n", encoding="utf-8")
    delays = delays_of(8, file=written(tmp_path, "delay: mine.py:delay\nwhat_if: all*2\n"), what_if="all+1ms")
    found = delays.base("all_to_all", 1000, tuple(range(8)))
    assert (found.time, found.host) == pytest.approx((8e-3, 1e-6))
    assert delays.what_if("all_to_all", found).time == pytest.approx(17e-3)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tabels: []\n", "delays.yaml:2: tabels: unknown key 'tabels'; did you mean 'tables'?"),
        ("delay: mine.py\n", "delays.yaml:2: delay: expected a function of a Python file, such as my_model.py:delay, got 'mine.py'"),
        ("delay: mine.py:delay\n", "delays.yaml:2: delay: there is no file"),
        ("system: dgx\n", "unknown template 'dgx'"),
        ("what_if: al+1ms\n", "delays.yaml:2: what_if: what-if 'al+1ms': unknown word 'al'; did you mean 'all'?"),
        (TABLE.replace("2 kB", "1 kB"), "delays.yaml:3: tables[0].points: expected sizes that increase"),
        (TABLE.replace("2 kB, 3 ms, 5 us", "2 kB"), "expected a size, a time and, if known, the host's time"),
        (TABLE.replace("3 ms", "3"), "expected a quantity in s, got the bare number 3"),
        (TABLE + TABLE.partition("\n")[2], "a second table of all_reduce among 2 ranks; the first is tables[0]"),
        ("", "delays.yaml:1: nothing says how long collectives take; give it tables, delay or system, or give --system NAME"),
    ],
)
def test_a_wrong_file_of_delays_is_refused(tmp_path, text, problem):
    with pytest.raises(CrossflowError) as caught:
        delays_of(8, file=written(tmp_path, text))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("(op, size, ranks): return -1", "the delay function returned -1 for send of 8 B; expected seconds, or seconds and host seconds"),
        ("(op, size, ranks): return '1ms'", "the delay function returned '1ms' for send of 8 B; expected seconds"),
        ("(op): return 1", "mine.py: delay failed for send of 8 B: TypeError: delay() takes 1 positional argument"),
    ],
)
def test_a_function_that_returns_no_time_is_refused(tmp_path, text, sentence):
    (tmp_path / "mine.py").write_text(f"def delay{text}\n", encoding="utf-8")
    delays = delays_of(8, file=written(tmp_path, "delay: mine.py:delay\n"))
    with pytest.raises(CrossflowError, match=re.escape(sentence)):
        delays.base("send", 8, (0, 1))


# -------------------------------------------------------------------------------------------- queues and slower ranks


def test_collectives_of_a_link_follow_one_another():
    queues = Fifo()
    assert [queues.place("wire", arrival, 3.0) for arrival in (0.0, 1.0, 10.0)] == [(0.0, 3.0), (3.0, 6.0), (10.0, 13.0)]
    assert queues.place("other", 1.0, 3.0) == (1.0, 4.0)


def test_a_slower_rank_arrives_late_by_what_it_computes_longer():
    """Two passes of 10 s each with a collective of 1 s after each, the other rank 1.2 times as slow: it is waited for twice."""
    pace, now = Pace(slow=(Slow(ranks=frozenset({7}), factor=1.2),)), 0.0
    pace.reach(now)
    for _ in range(2):
        now += 10.0
        arrival = pace.arrival(now, (0, 7))
        assert arrival == pytest.approx(now + 2.0)
        now = arrival + 1.0
        pace.waited(now, now)
    assert now == pytest.approx(2 * 13.0)


def test_a_group_without_the_slower_rank_does_not_wait_for_it():
    pace = Pace(slow=(Slow(ranks=frozenset({7}), factor=2.0, extra=1.0),))
    pace.reach(0.0)
    assert pace.arrival(10.0, (0, 1)) == 10.0
    assert pace.arrival(10.0, (0, 7)) == 21.0


def test_measured_collectives_of_a_system_are_its_delays(tmp_path):
    (tmp_path / "p.csv").write_text("op,shape,ranks,scope,time\nall_reduce,1000 B,8,intra,1 ms\nall_reduce,4000 B,8,intra,2 ms\n")
    (tmp_path / "mine.yaml").write_text("kind: system\ntemplate: dgx-a100\nname: mine\nprofile: p.csv\n")
    delays = SystemDelays.of(str(tmp_path / "mine.yaml"), 8)
    assert delays.time("all_reduce", 2000, tuple(range(8))) == (pytest.approx(2**0.5 * 1e-3), 0.0)


@pytest.mark.parametrize(
    ("size", "time"), [(50, 1.0), (100, 1.0), (200, 2.0), (300, 3.0), (500, 5.0), (700, 7.0), (800, 9.0), (1000, 13.0)]
)
def test_times_of_listed_sizes_go_on_as_lines(size, time):
    """Between sizes, from the first back as it is, and beyond the last as between the last two, though never below nothing."""
    assert _interpolated(size, (100, 300, 700, 750), (1.0, 3.0, 7.0, 8.0)) == pytest.approx(time)
    assert _interpolated(size, (400,), (2.0,)) == 2.0
    assert _interpolated(size, (1, 2), (5.0, 4.0)) == 0.0
