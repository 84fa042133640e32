"""Traces of requests in files: formats, units, sessions, hashes, windows and scales, and the line of what is wrong."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import crossflow
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.files import Document, validate_at
from crossflow.workload.requests.asking import requests_in
from crossflow.workload.requests.formats import FORMATS, recognised
from crossflow.workload.requests.shared import leading
from crossflow.workload.requests.spec import RequestsSpec
from crossflow.workload.requests.tables import CHUNK

DATA = Path(__file__).parent / "data" / "requests"
HEAD = "arrival_s,prompt,output\n"


def read(trace, base=DATA, **more):
    return requests_in(
        validate_at(RequestsSpec, Document(file="f.yaml", data={"requests": {"trace": trace, **more}}), "requests"), base
    ).trace


@pytest.fixture
def trace(tmp_path):
    """A function that writes a trace and reads it."""

    def of(text, name="day.csv", **more):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return read(name, tmp_path, **more)

    return of


def lines_of(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


# ------------------------------------------------------------------------------------------ formats


def test_azure_has_dates():
    found = read("azure_conv.csv")
    assert (len(found), found.prompt[0], found.output[0]) == (60, 374, 44)
    assert found.arrival[:2] == pytest.approx([0.0, 4.314579])
    assert (found.place(0), found.blocks) == (f"{DATA}/azure_conv.csv:3", None)


def test_mooncake_has_milliseconds_and_hashes_of_full_blocks():
    found = read("mooncake.jsonl")
    rows = [json.loads(line) for line in (DATA / "mooncake.jsonl").read_text().splitlines()[1:]]
    assert found.arrival.tolist() == pytest.approx([row["timestamp"] / 1000 for row in rows])
    assert found.block == 512
    assert found.blocks.counts.tolist() == [row["input_length"] // 512 for row in rows]
    known = np.concatenate([row["hash_ids"][: row["input_length"] // 512] for row in rows])
    assert np.array_equal(found.blocks.held[:, None] == found.blocks.held, known[:, None] == known)


def test_measured_requests_of_a_bench_begin_at_their_first_arrival():
    found = read("llmservingsim.jsonl")
    assert (found.arrival[0], found.prompt[0], found.output[0]) == (0.0, 2358, 531)
    assert found.arrival[1] == pytest.approx(0.2650914, abs=1e-6)


BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_burstgpt_has_classes_sessions_and_pauses(trace):
    found = trace(
        BURST + "5,a,2,ChatGPT,472,18,490,Conversation log\n6,b,1,GPT-4,10,3,13,API log\n45,a,3,ChatGPT,1087,230,1317,Conversation log\n"
    )
    assert [one.name for one in found.classes] == ["Conversation log", "API log"]
    assert (found.kind.tolist(), found.follows.tolist(), found.pause.tolist()) == ([0, 1, 0], [-1, -1, 0], [0, 0, 38])
    assert found.arrival.tolist() == [5, 6, 45]


def test_another_column_may_say_the_class(trace):
    text = BURST + "5,a,2,ChatGPT,472,18,490,Conversation log\n"
    assert trace(text, columns={"class": "Model"}).classes[0].name == "ChatGPT"


@pytest.mark.parametrize(
    ("rows", "arrival"),
    [
        ([{"timestamp": 1.5, "input_tokens": 7, "output_tokens": 3}], 1.5),
        ([{"arrival_time_ns": 2_000_000_000, "input_toks": 7, "output_toks": 3}], 2.0),
        ([{"arrived_at": 0.5, "num_prefill_tokens": 7, "num_decode_tokens": 3}], 0.5),
        ([{"arrival_timestamp": 0.25, "prompt_size": 7, "token_size": 3}], 0.25),
        ([{"input_lens": [7], "output_lens": [3], "start_times": [4.0], "ttfts": [0.1], "duration": 9.0}], 4.0),
    ],
)
def test_lines_of_other_tools_are_recognised(trace, rows, arrival):
    found = trace(lines_of(*rows), "day.jsonl")
    assert (found.arrival.tolist(), found.prompt.tolist(), found.output.tolist()) == ([arrival], [7], [3])


def test_results_of_benchmarks_are_sorted_by_arrival(trace):
    found = trace(json.dumps({"input_lens": [7, 8], "output_lens": [3, 4], "start_times": [4.0, 2.0], "completed": 2}), "result.json")
    assert (found.arrival.tolist(), found.prompt.tolist()) == ([2.0, 4.0], [8, 7])


def test_a_report_of_guidellm_gives_the_requests_that_were_answered(trace):
    done = [{"request_start_time": at, "prompt_tokens": 10, "output_tokens": 5} for at in (1787267980.5, 1787267980.0)]
    report = {"benchmarks": [{"requests": {"successful": done, "errored": [{"request_start_time": 1.0}]}}]}
    assert trace(json.dumps(report), "report.json").arrival.tolist() == [0.0, 0.5]


def test_a_list_of_requests_is_a_trace_too(trace):
    assert len(trace(json.dumps([{"arrival_s": 0, "prompt": 3, "output": 2}] * 3), "day.json")) == 3


def test_the_format_that_needs_most_of_the_columns_wins():
    assert recognised(["timestamp", "input_length", "output_length", "hash_ids"]).name == "Mooncake"
    assert recognised(["request_id", "type", "input_length", "output_length"]).name == "ServeGen, offline"
    assert all(recognised(one.needs.values()) is not None for one in FORMATS)


def test_the_unit_of_times_without_blocks_is_asked_for(trace):
    text = "timestamp,input_length,output_length\n0.5,100,10\n2.0,200,20\n"
    with pytest.raises(SpecError, match=r"the unit of 'timestamp' is not known; give requests.time_unit: s, ms, us or ns"):
        trace(text)
    assert trace(text, time_unit="s").arrival[-1] - trace(text, time_unit="s").arrival[0] == 1.5
    assert trace(text, time_unit="ms").arrival[-1] - trace(text, time_unit="ms").arrival[0] == 1.5e-3


def test_parquet_is_read_through_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    rows = {
        "TIMESTAMP": pandas.to_datetime(["2024-05-10 00:00:00.5", "2024-05-10 00:00:02.0"]),
        "ContextTokens": [5, 6],
        "GeneratedTokens": [1, 2],
    }
    pandas.DataFrame(rows).to_parquet(tmp_path / "day.parquet")
    assert read("day.parquet", tmp_path).arrival.tolist() == [0.0, 1.5]


@pytest.mark.parametrize("ending", [".csv.gz", ".jsonl.gz"])
def test_gzip_is_unpacked(tmp_path, ending):
    text = HEAD + "0,5,2\n" if "csv" in ending else lines_of({"arrival_s": 0, "prompt": 5, "output": 2})
    (tmp_path / f"day{ending}").write_bytes(gzip.compress(text.encode()))
    assert read(f"day{ending}", tmp_path).prompt.tolist() == [5]


@pytest.mark.parametrize(
    "date", ["2026-11-16 18:15:46.5", "2026-11-16T18:15:46.500000Z", "2026-11-16 18:15:46.5+00:00", "2026-11-16 20:15:46.5+02:00"]
)
def test_dates_have_many_forms(trace, date):
    found = trace(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2026-11-16 18:15:46,5,2\n{date},6,2\n")
    assert found.arrival.tolist() == pytest.approx([0.0, 0.5])


def test_columns_are_named_where_they_are_not_recognised(trace):
    found = trace("when,in,out\n500,5,2\n1500,6,3\n", columns={"arrival": "when", "prompt": "in", "output": "out"}, time_unit="ms")
    assert (found.arrival.tolist(), found.prompt.tolist()) == ([0.5, 1.5], [5, 6])


def test_the_name_of_a_column_may_say_its_unit(trace):
    assert trace("t_us,in,out\n500,5,2\n", columns={"arrival": "t_us", "prompt": "in", "output": "out"}).arrival.tolist() == [0.0005]


def test_rows_of_many_chunks_are_one_trace(trace):
    n = 2 * CHUNK + 5
    found = trace(HEAD + "".join(f"{i},{i % 7 + 1},2\n" for i in range(n)))
    assert (len(found), found.arrival[-1], found.prompt[-1], found.lines[-1]) == (n, n - 1, (n - 1) % 7 + 1, n + 1)


def test_a_written_trace_is_read_as_the_same_requests(tmp_path):
    spec = {"arrivals": {"law": "poisson", "rate": "2 1/s"}, "duration": "60 s", "prompt": {"law": "uniform", "low": 5, "high": 90}, "output": 9,
            "sessions": {"turns": 3, "think": "2 s"}, "classes": [{"name": "a"}, {"name": "b", "tools": {"calls": 1, "time": "1 s", "tokens": 4}}]}  # fmt: skip
    found = crossflow.requests(spec)
    for name in ("day.csv", "day.jsonl", "day.csv.gz", "day.jsonl.gz"):
        assert read(name, found.write(tmp_path / name).parent).digest == found.trace.digest
    assert (tmp_path / "day.jsonl.gz").read_bytes() == found.write(tmp_path / "again.jsonl.gz").read_bytes()


# ------------------------------------------------------------------------------------------ what is asked of a trace

FIVE = HEAD + "".join(f"{10 * i},{100 + i},{i + 1}\n" for i in range(5))  # at 0, 10, ... 40 s


def test_a_window_begins_at_its_beginning(trace):
    found = trace(FIVE, **{"from": "10 s", "until": "35 s"})
    assert (found.arrival.tolist(), found.prompt.tolist()) == ([0, 10, 20], [101, 102, 103])


def test_the_rate_and_all_times_are_scaled(trace):
    text = "arrival_s,prompt,output,follows,pause_s\n0,5,2,-1,0\n10,6,2,0,4\n"
    assert trace(text, rate_scale=2).arrival.tolist() == [0, 5]
    assert trace(text, rate_scale=2).pause.tolist() == [0, 4]
    assert (trace(text, time_scale=2).arrival.tolist(), trace(text, time_scale=2).pause.tolist()) == ([0, 20], [0, 8])


def test_a_repeated_trace_goes_on_a_mean_gap_later_with_new_prompts(trace):
    found = trace(FIVE, repeat=2)
    assert found.arrival.tolist() == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    again = read("mooncake.jsonl", repeat=2)
    assert leading(again.blocks).sum() == 2 * leading(read("mooncake.jsonl").blocks).sum()


def test_requests_of_a_repeated_trace_are_those_of_it_but_for_their_time(trace):
    """Sessions go on in their own time, and each request is told by its line; two beyond a whole number of times are the first."""
    rows = "0,3,9,Chat,s\n4,5,1,Api,\n10,20,7,Chat,s\n12,6,2,Api,t\n15,9,1,Api,t\n"
    columns = {"columns": {"class": "kind", "session": "user"}}
    once, found = (trace("arrival_s,prompt,output,kind,user\n" + rows, **columns, **more) for more in ({}, {"repeat": 3, "limit": 12}))
    for name in ("prompt", "output", "kind", "pause"):
        assert getattr(found, name).tolist() == [*getattr(once, name)] * 2 + [*getattr(once, name)][:2], name
    assert (once.follows.tolist(), found.follows.tolist()) == ([-1, -1, 0, -1, 3], [-1, -1, 0, -1, 3, -1, -1, 5, -1, 8, -1, -1])
    assert [found.place(i) for i in range(12)] == [once.place(i % 5) for i in range(12)]
    assert found.arrival[5] - found.arrival[4] == pytest.approx(15 / 4)


def test_a_limit_takes_the_first(trace):
    assert trace(FIVE, limit=2).prompt.tolist() == [100, 101]


def test_a_trace_may_come_at_other_times(trace):
    found = trace(FIVE, arrivals={"law": "deterministic", "rate": "2 1/s"})
    assert (found.arrival.tolist(), found.prompt.tolist()) == ([0, 0.5, 1, 1.5, 2], [100, 101, 102, 103, 104])
    loop = trace(FIVE, users=2)
    assert (loop.follows.tolist(), loop.prompt.tolist()) == ([-1, -1, 0, 1, 2], [100, 101, 102, 103, 104])
    assert trace(FIVE, batch=3).arrival.tolist() == [0, 0, 0]


def test_sessions_keep_their_pauses_at_other_times(trace):
    text = "arrival_s,prompt,output,session\n0,5,2,a\n1,7,2,b\n4,9,2,a\n"
    found = trace(text, arrivals={"law": "deterministic", "rate": "0.1 1/s"})
    assert (found.arrival.tolist(), found.prompt.tolist(), found.follows.tolist()) == ([0, 4, 10], [5, 9, 7], [-1, 0, -1])


def test_offline_requests_have_no_times_of_their_own(trace):
    text = lines_of(*({"request_id": i, "type": "text", "input_length": 20, "output_length": 5, "duration": 9} for i in range(3)))
    assert trace(text, "offline.jsonl", batch=2).arrival.tolist() == [0, 0]
    with pytest.raises(
        CrossflowError, match=r"^trace: it does not say when requests arrive; name the column in columns.arrival, or give arrivals"
    ):
        trace(text, "offline.jsonl")


def test_classes_of_a_trace_get_targets_and_priorities(trace):
    text = "arrival_s,prompt,output,class\n0,5,2,chat\n1,7,2,code\n"
    found = trace(text, targets={"e2e": "9 s"}, classes=[{"name": "code", "targets": {"ttft": "1 s"}, "priority": 3}])
    assert [(one.name, one.priority, one.ttft, one.e2e) for one in found.classes] == [("chat", 0, None, 9.0), ("code", 3, 1.0, 9.0)]


def test_empty_requests_are_left_out_where_asked_and_told(trace, tmp_path):
    text = HEAD + "0,5,2\n1,7,0\n2,0,3\n3,4,4\n"
    assert trace(text, empty="drop").prompt.tolist() == [5, 4]
    (tmp_path / "day.yaml").write_text("requests: {trace: day.csv, empty: drop}\n")
    assert crossflow.requests(tmp_path / "day.yaml").notes == ("2 requests without a token of prompt or output are left out (empty: drop)",)


def test_an_unsorted_trace_is_sorted_where_asked(trace):
    assert trace(HEAD + "5,1,1\n3,2,2\n", unsorted="sort").prompt.tolist() == [2, 1]


def test_lengths_may_come_from_a_file(tmp_path):
    (tmp_path / "lengths.csv").write_text("a,b\n5,1\n7,2\n")
    spec = {"batch": 50, "prompt": {"law": "empirical", "file": "lengths.csv", "column": "a"}, "output": 3}
    found = requests_in(validate_at(RequestsSpec, Document(file="f", data={"requests": spec}), "requests"), tmp_path).trace
    assert set(found.prompt) == {5, 7}


# ------------------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "0,5,2\n1,x,2\n2,y,2\n", "day.csv:3: prompt: expected a whole number of tokens, got 'x' (and 1 more row)"),
        (HEAD + "0,5,2\n1,,2\n", "day.csv:3: prompt: expected a whole number of tokens, got nothing"),
        (HEAD + "0,5.5,2\n", "day.csv:2: prompt: expected a whole number of tokens, got '5.5'"),
        (HEAD + "0,nan,2\n", "day.csv:2: prompt: expected a whole number of tokens, got 'nan'"),
        (HEAD + "0,5,-2\n", "day.csv:2: output: expected a whole number of tokens, at least 1, got -2"),
        (HEAD + "0,5,0\n", "day.csv:2: output: expected a whole number of tokens, at least 1, got 0; requests.empty: drop leaves such requests out"),
        (HEAD + "0,1000000000,2\n", "day.csv:2: prompt: expected at most 10,000,000 tokens of a request, got 1,000,000,000"),
        (HEAD + "-3,5,2\n", "day.csv:2: arrival_s: expected a time of at least 0, got '-3'"),
        (HEAD + "soon,5,2\n", "day.csv:2: arrival_s: expected a number or a date, got 'soon'"),
        (HEAD + "5,5,2\n3,5,2\n9,1,1\n1,1,1\n", "day.csv:3: arrival_s: it arrives 2 s before the request above it (and 1 more row); sort the file, or give requests.unsorted: sort"),
        (HEAD + "0,5\n", "day.csv:2: expected 3 cells as its header has, got 2"),
        (HEAD, "day.csv: it holds no requests"),
        ("", "day.csv: expected a header and rows, the file is empty"),
        ("arrival_s,prompt,prompt\n0,5,2\n", "day.csv:1: column 'prompt' is there twice"),
        ("when,in,out\n0,5,2\n", "day.csv: no column is known to hold the tokens of prompts; there are: 'when', 'in', 'out'; name it in requests.columns.prompt"),
        (HEAD + '0,5,"2\n', "day.csv:2: is not a table: unexpected end of data"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2026-11-16 18:15:46,5,2\n2026-13-16,5,2\n",
            "day.csv:3: TIMESTAMP: expected a date such as 2026-11-16 18:15:46.68, got '2026-13-16'"),
        ("arrival_s,prompt,output,follows,pause_s\n0,5,2,0,1\n", "day.csv:2: follows: expected the number of an earlier request, from 0, or -1, got 0"),
        ("arrival_s,prompt,output,follows,pause_s\n0,5,2,-1,0\n1,5,2,0,-1\n", "day.csv:3: pause_s: expected a number of at least 0, got -1.0"),
    ],
)  # fmt: skip
def test_a_row_that_is_wrong_is_told_with_its_line(trace, tmp_path, text, message):
    with pytest.raises(SpecError) as caught:
        trace(text)
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (lines_of({"arrival_s": 0, "prompt": 5, "output": 2}) + "{oops\n", "day.jsonl", "day.jsonl:2: expected a JSON object a line"),
        ("[1, 2]\n", "day.jsonl", "day.jsonl:1: expected a JSON object a line, got [1, 2]"),
        (
            lines_of({"arrival_s": 0, "prompt": 5, "output": 2}, {"arrival_s": 1, "output": 2}),
            "day.jsonl",
            "day.jsonl:2: prompt: expected a whole number of tokens, got nothing",
        ),
        (
            lines_of({"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [1]}),
            "day.jsonl",
            "day.jsonl:1: hash_ids: expected 2 hashes for 1,024 tokens in blocks of 512, got 1",
        ),
        (
            lines_of({"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": "no"}),
            "day.jsonl",
            "day.jsonl:1: hash_ids: expected a list of hashes, got 'no'",
        ),
        (
            '{"a": 1}',
            "day.json",
            "day.json: expected a list of requests, a result with input_lens and output_lens, or a report with benchmarks",
        ),
        ('{"a": ', "day.json", "day.json:1: not valid JSON"),
        ("x", "day.txt", "day.txt: expected a trace of requests, a file that ends in .csv, .jsonl"),
        ("no gzip", "day.csv.gz", "day.csv.gz: is no whole gzip file"),
        ("x", "day.parquet", "day.parquet: "),
    ],
)
def test_a_file_that_is_no_trace_is_told(trace, tmp_path, text, name, message):
    with pytest.raises(CrossflowError) as caught:
        trace(text, name)
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(message)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"columns": {"prompt": "promt"}},
            "columns.prompt: there is no column 'promt'; did you mean 'prompt'?; there are: arrival_s, prompt, output",
        ),
        (
            {"classes": [{"name": "chat"}]},
            "classes: no request of the trace is of class 'chat'; it has no column of classes (columns.class); give requests.targets",
        ),
        ({"block": 64}, "requests.block has no meaning without a column of hashes of blocks (columns.blocks); leave it out"),
        (
            {"columns": {"elapsed": "output"}},
            "requests.columns.elapsed has no meaning without a column of sessions (columns.session); leave it out",
        ),
        ({"from": "2 h"}, "from: no request of the trace arrives in this window"),
        ({"batch": 9}, "batch: the trace has 5 requests, or sessions, got 9; give repeat too"),
    ],
)
def test_what_a_trace_does_not_have_is_told(trace, more, message):
    with pytest.raises(CrossflowError) as caught:
        trace(FIVE, **more)
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prompt": 5}, "prompt: the trace says it; leave it out, or leave out trace"),
        ({"count": 5}, "count: the trace says how many requests there are; give limit"),
        ({"users": 5, "from": "3 s"}, "from: users says when they come, not the trace; give limit, or leave it out"),
        ({"users": 5, "rate_scale": 2}, "rate_scale: users send their requests one after another; give another number of users"),
        ({"seed": 3}, "seed: nothing is drawn; leave it out"),
        ({"until": "3 s", "from": "3 s"}, "until: expected more than from"),
        ({"classes": [{"name": "a", "weight": 2}]}, "classes: 'a': weight: the trace says it; leave it out"),
        ({"columns": {"klass": "a"}}, "columns.klass: unknown key 'klass'; did you mean 'class'?"),
    ],
)
def test_what_has_no_meaning_beside_a_trace_is_refused(trace, more, message):
    with pytest.raises(SpecError) as caught:
        trace(FIVE, **more)
    assert str(caught.value) == f"f.yaml: requests.{message}"


def test_a_unit_that_nobody_says_is_asked_for(trace):
    with pytest.raises(SpecError, match=r"the unit of 'when' is not known; give requests.time_unit: s, ms, us or ns"):
        trace("when,in,out\n5,5,2\n", columns={"arrival": "when", "prompt": "in", "output": "out"})


def test_dates_have_no_unit():
    with pytest.raises(SpecError, match=r"azure_conv.csv: TIMESTAMP: it holds dates, which have no unit; leave out requests.time_unit"):
        read("azure_conv.csv", time_unit="ms")


def test_a_changed_file_is_read_again(trace):
    assert trace(FIVE).prompt[0] == 100
    assert trace(HEAD + "0,7,7\n").prompt.tolist() == [7]


def test_leading_blocks_are_those_that_earlier_prompts_begin_with():
    found = read("mooncake.jsonl")
    seen, hits = set(), []
    for i in range(len(found)):
        own = found.blocks[i]
        hits.append(next((j for j, one in enumerate(own) if one not in seen), len(own)))
        seen.update(own)
    assert np.array_equal(leading(found.blocks), hits)


def test_lines_are_those_of_the_file_whatever_stands_between(trace):
    text = '# a comment\n\narrival_s,prompt,output,class\n0,5,2,"two\nlines"\n\n# another\n1,6,2,b\n2,x,2,b\n'
    with pytest.raises(SpecError, match=r"day.csv:9: prompt: expected a whole number of tokens, got 'x'"):
        trace(text)
    assert trace(text.replace("x", "7")).lines.tolist() == [5, 8, 9]


def test_lines_of_objects_may_be_called_json(trace):
    assert trace(lines_of(*({"arrival_s": i, "prompt": 3, "output": 2} for i in range(3))), "day.json").arrival.tolist() == [0, 1, 2]


def test_one_that_comes_before_what_it_follows_is_refused(trace):
    with pytest.raises(SpecError, match=r"day.csv:3: follows: expected the number of an earlier request, from 0, or -1, got 0"):
        trace("arrival_s,prompt,output,follows,pause_s\n5,5,2,-1,0\n1,5,2,0,0\n", unsorted="sort")
