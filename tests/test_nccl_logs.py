# ruff: noqa: E501  (exact sentences)
"""Logs of nccl-tests: versions, what other programs print between the lines, what cannot be read."""

import numpy as np
import pytest
from nccl_logs import log

from crossflow.base.errors import SpecError
from crossflow.evidence.calibration.logs import LogOptions, read_log

ROWS = [(1024.0, 12.5), (2048.0, 13.0), (1048576.0, 40.25)]


@pytest.fixture
def read(tmp_path):
    def of(text, name="all_reduce_perf.log", **options):
        return read_log(tmp_path / name, text, LogOptions(**options))

    return of


def one(found):
    (run,), skipped = found
    assert not skipped
    return run


@pytest.mark.parametrize("version", ["2.0", "2.13", "2.17"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all", "reduce_scatter", "broadcast", "sendrecv"])
def test_logs_of_several_versions_hold_the_same(read, version, collective):
    name = {"all_to_all": "alltoall"}.get(collective, collective)
    run = one(read(log(collective, 16, 8, ROWS, version=version), f"{name}_perf.log"))
    assert (run.collective, run.ranks, run.ranks_per_node) == (collective, 16, 8)
    assert run.size.tolist() == [1024.0, 2048.0, 1048576.0]
    assert run.time == pytest.approx([12.5e-6, 13e-6, 40.25e-6])
    assert run.in_place == pytest.approx(1.01 * run.time, rel=1e-3)


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "[1,0]<stdout>: ", " 0: "])
def test_prefixes_of_launchers_are_taken_off(read, prefix):
    text = "\n".join(prefix + line for line in log("all_reduce", 8, 8, ROWS).splitlines())
    assert one(read(text)).ranks == 8


def test_what_nccl_prints_between_the_rows_is_left_out(read):
    lines = log("all_reduce", 8, 8, ROWS).splitlines()
    noise = [
        "node00:4000:4031 [0] NCCL INFO Channel 00/24 :    0   1   2",
        "10-0-0-1:77:77 [0] NCCL WARN Call to ibv_modify_qp failed",
        "NCCL version 2.19.3+cuda12.2",
    ]
    mixed = [part for line in lines for part in (*noise, line)]
    assert one(read("\n".join(mixed))).size.size == 3


def test_a_file_may_hold_several_tests(read):
    """The program that the shell echoes names each."""
    text = "".join(f"+ ./build/{name}_perf -b 8 -e 1M -g 4\n" + log(name, 4, 4, ROWS) for name in ("all_gather", "reduce_scatter"))
    found, _ = read(text, "nightly.txt")
    assert [run.collective for run in found] == ["all_gather", "reduce_scatter"]


def test_a_test_that_failed_leaves_nothing_to_the_next(read):
    """Sixteen ranks were listed, then a test of four ran."""
    failed = log("all_reduce", 16, 8, ROWS).partition("#  ")[0] + "\n".join(log("all_reduce", 16, 8, []).splitlines()[3:19]) + "\n"
    assert one(read(failed + "node00: Test NCCL failure common.cu:954\n" + log("all_reduce", 4, 4, ROWS))).ranks == 4


def test_the_user_says_what_a_log_does_not(read):
    text = "\n".join(line for line in log("all_reduce", 16, 8, ROWS).splitlines() if "Rank" not in line)
    run = one(read(text, "x.log", collective="all_reduce", ranks=16, nodes=2))
    assert (run.collective, run.ranks, run.ranks_per_node) == ("all_reduce", 16, 8)


def test_devices_of_one_process_are_its_ranks(read):
    text = "\n".join(line for line in log("all_reduce", 8, 8, ROWS).splitlines() if "Rank" not in line)
    assert (one(read(text)).ranks, one(read(text)).ranks_per_node) == (8, 8)


@pytest.mark.parametrize("lost", [5, 18, 30, 60])
def test_a_log_that_breaks_off_keeps_its_whole_rows(read, lost):
    text = log("all_reduce", 8, 8, ROWS).partition("# Out of bounds")[0].rstrip()[:-lost]
    (run,), skipped = read(text)
    assert run.size.tolist() == [1024.0, 2048.0]
    assert skipped == {"the log breaks off in the row": 1}


def test_wrong_results_and_empty_buffers_do_not_count(read):
    found, skipped = read(log("all_reduce", 8, 8, [(0.0, 5.0), *ROWS]) + log("all_reduce", 8, 8, ROWS, wrong="17"))
    assert [run.size.size for run in found] == [3]
    assert skipped == {"a buffer of 0 bytes": 1, "its results were wrong (#wrong)": 3}


def test_collectives_without_a_model_are_told(read):
    found, skipped = read("# Collective test starting: hypercube_perf\n" + log("all_reduce", 8, 8, ROWS), "x.log")
    assert (found, skipped) == ([], {"crossflow has no collective 'hypercube'": 3})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.replace("      2048", "1  2048", 1), "x_all_reduce.log:17: expected 13 columns as the header names (size count type redop root time algbw busbw #wrong time algbw busbw #wrong), got 14"),
        (lambda t: t.replace("       12.50", "          -", 1), "x_all_reduce.log:16: expected times in us in the columns time, got -, 12.62"),
        (lambda t: t.replace("       12.50", "        0.0", 1), "x_all_reduce.log:16: expected a time above zero, got 0.0"),
        (lambda t: t.replace("        time", "        when"), "x_all_reduce.log:14: the header names no column time, only size, count, type, redop, root, when, algbw, busbw, #wrong, when, algbw, busbw, #wrong"),
        (lambda t: "\n".join(line for line in t.splitlines() if "  size" not in line), "x_all_reduce.log:15: a row without a header of columns above it (# size count type ... time algbw busbw)"),
        (lambda t: t.replace("      2048  ", "      2e3  ", 1), "x_all_reduce.log:17: expected the bytes and the elements of a buffer, whole numbers, got 2e3 512"),
        (lambda t: t.replace("(us)", "(ms)"), "x_all_reduce.log:15: the units are (B) (elements) (ms) (GB/s) (GB/s); nccl-tests has (B), (elements), (us), (GB/s), not (ms)"),
        (lambda t: t.replace("40.25", "0.04"), "x_all_reduce.log:18: 1048576 B in 0.04 us are 2.62e+04 GB/s, its algbw says 26.05: time or size has another unit"),
        (lambda t: t.replace("values : 0 OK", "values : 8 FAILED"), "x_all_reduce.log:19: 8 results were wrong (FAILED), and no row says which; measure again"),
        (lambda t: t.replace("sum", "none"), "x_all_reduce.log:1: its rows name no operation (redop), so that it is no all_reduce; correct --op or the file's name"),
        (lambda t: t.replace("45.59", "26.05"), "x_all_reduce.log:1: its busbw is 1 times its algbw, and that of all_reduce among 8 ranks 1.75 times; correct --op, --ranks or the file's name"),
        (lambda t: t.replace("Rank  3", "..."), "x_all_reduce.log:1: its list of ranks leaves out 3"),
        (lambda t: t.replace("node00", "a", 3), "x_all_reduce.log:1: its ranks are spread unevenly over the hosts: 3 on a, 5 on node00; every node needs as many"),
        (lambda t: "# nThread 1 nGpus 8 minBytes 8\n", "x_all_reduce.log: holds no row of nccl-tests: a header (# size count type ... time algbw busbw), then a row a size"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_with_its_line(read, tmp_path, change, sentence):
    with pytest.raises(SpecError) as caught:
        read(change(log("all_reduce", 8, 8, ROWS)), "x_all_reduce.log")
    assert str(caught.value) == f"{tmp_path}/{sentence}"


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("x.log", {}, "x.log:1: which collective it is stands neither in the log nor in the file's name (all_reduce_perf.log); say so with --op, one of all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, sendrecv"),
        ("x.log", {"collective": "all_reduce", "ranks": 16, "nodes": 2}, "x.log:1: the log lists 8 ranks on 1 hosts, not 16 on 2; leave out --ranks"),
    ],
)  # fmt: skip
def test_what_a_log_does_not_say_is_asked_for(read, tmp_path, name, options, sentence):
    with pytest.raises(SpecError) as caught:
        read(log("all_reduce", 8, 8, ROWS), name, **options)
    assert str(caught.value) == f"{tmp_path}/{sentence}"


def test_what_the_log_says_of_itself_is_not_overruled(read, tmp_path):
    with pytest.raises(SpecError) as caught:
        read(log("all_reduce", 8, 8, ROWS, version="2.17"), collective="all_gather")
    assert str(caught.value) == f"{tmp_path}/all_reduce_perf.log:2: the log is of all_reduce, not of all_gather; leave out --op"


@pytest.mark.parametrize(
    ("name", "collective", "sentence"),
    [
        ("all_reduce_perf.log", "all_gather", "the file's name says all_reduce, --op says all_gather; leave out --op or rename the file"),
        ("x.log", "all_gather", "its rows name an operation (redop), so that it is no all_gather; correct --op or the file's name"),
        ("x.log", "reduce_scatter", "its busbw is 1.75 times its algbw, and that of reduce_scatter among 8 ranks 0.875 times; correct --op, --ranks or the file's name"),
    ],
)  # fmt: skip
def test_a_log_is_not_relabelled(read, tmp_path, name, collective, sentence):
    with pytest.raises(SpecError) as caught:
        read(log("all_reduce", 8, 8, ROWS), name, collective=collective)
    assert str(caught.value).splitlines()[0] == f"{tmp_path}/{name}:1: {sentence}"


def test_a_second_header_is_another_test(read):
    """Of which nothing says how many ranks took part."""
    table = "\n".join(log("all_reduce", 8, 8, ROWS).splitlines()[12:])
    with pytest.raises(SpecError, match=r"log:23: how many ranks took part does not stand in the log"):
        read(log("all_reduce", 8, 8, ROWS) + table, "x_all_reduce.log")


def test_options_that_change_a_time_are_told(read):
    text = log("all_reduce", 8, 8, ROWS).replace("agg iters: 1", "agg iters: 10").replace("graph: 0", "graph: 4")
    assert one(read(text)).told == ("in CUDA graphs (graph: 4), without launches by the host", "10 calls at once (agg iters)")


def test_lists_of_ranks_that_wrap_are_counted_once(read):
    """Groups of a split run side by side: the ranks of the first are those of the collective."""
    text = log("all_reduce", 4, 4, ROWS).replace(*(log("all_reduce", ranks, 8, []).partition("#\n#   ")[0] for ranks in (4, 8)))
    split = text.replace("Rank  4 Group  0", "Rank  0 Group  1").replace("Rank  5 Group  0", "Rank  1 Group  1")
    split = split.replace("Rank  6 Group  0", "Rank  2 Group  1").replace("Rank  7 Group  0", "Rank  3 Group  1")
    run = one(read(split))
    assert (run.ranks, run.ranks_per_node) == (4, 4)
    assert np.isfinite(run.in_place).all()
