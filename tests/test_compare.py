"""Two timelines beside each other: differences add up, and change their sign when the timelines change places."""

import io
import json

import pytest
from rich.console import Console
from timelines import pipeline

from crossflow.edges.trace.compare import MOST_EVENTS, compare, draw_comparison, time_by_name
from crossflow.edges.trace.text import text_comparison
from crossflow.engine.timeline.record import ACTIVITIES


@pytest.fixture(scope="module")
def pair():
    return pipeline(4, 8, title="deep"), pipeline(2, 8, work=2.6, exposed=1.0, wait=0.0, replicas=4, title="flat")


def test_contributions_add_up_to_the_difference_of_the_totals(pair):
    found = compare(*pair)
    assert [part.name for part in found.activities] == list(ACTIVITIES)
    assert sum(part.difference for part in found.activities) == pytest.approx(pair[1].total - pair[0].total)


def test_activities_add_up_to_the_totals(pair):
    found = compare(*pair)
    assert sum(part.first for part in found.activities) == pytest.approx(found.totals[0])
    assert sum(part.second for part in found.activities) == pytest.approx(found.totals[1])


def test_places_changed_signs_changed(pair):
    there, back = compare(*pair), compare(*pair[::-1])
    assert there.ratio * back.ratio == pytest.approx(1)
    assert [part.difference for part in there.events] == pytest.approx([-part.difference for part in back.events])


def test_a_timeline_is_like_itself(pair):
    found = compare(pair[0], pair[0])
    assert (found.ratio, found.events) == (1.0, ())
    assert found.sentences()[2] == "both take the same time"


def test_events_are_those_of_the_timeline(pair):
    for timeline in pair:
        for name, time in time_by_name(timeline).items():
            own = [timeline.events(device) for device in range(len(timeline.devices))]
            mine = [(one.end - one.start)[[timeline.names[i] == name for i in one.name]].sum() for one in own]
            assert time == pytest.approx(sum(mine) / len(mine))


def test_events_that_one_has_alone_are_named(pair):
    lost = next(part for part in compare(*pair).events if part.name == "straggler all_reduce")
    assert lost.first > 0 == lost.second


def test_few_events_the_largest_difference_first(pair):
    found = compare(*pair)
    sizes = [abs(part.difference) for part in found.events]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) <= MOST_EVENTS
    assert min(sizes) >= 0.01 * abs(found.totals[1] - found.totals[0])


def test_classes_count_by_their_ranks():
    alone, many = pipeline(2, 4, replicas=1), pipeline(2, 4, replicas=8)
    assert [part.difference for part in compare(alone, many).activities] == pytest.approx([0.0] * len(ACTIVITIES))


def test_sentences_name_what_makes_the_difference():
    slow, fast = pipeline(2, 4, exposed=1.0, wait=0.0), pipeline(2, 4, exposed=0.0, wait=0.0)
    sentence = compare(slow, fast).sentences()[2]
    assert sentence.startswith(f"second is {slow.total / fast.total:.3g} times faster: less exposed communication (-16 ms)")
    assert compare(fast, slow).sentences()[2].startswith(f"second is {slow.total / fast.total:.3g} times slower: more exposed")


def test_a_comparison_is_plain_data(pair):
    plain = json.loads(json.dumps(compare(*pair).to_dict(), allow_nan=False))
    assert plain["titles"] == ["deep", "flat"]
    assert plain["ratio"] == pytest.approx(pair[0].total / pair[1].total)
    assert all(part["difference"] == part["second"] - part["first"] for part in plain["activities"])


def test_lines_share_an_axis_of_time(pair):
    console = Console(width=100, file=io.StringIO())
    console.print(text_comparison(*pair, 100))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    bars = [line for line in text.splitlines() if line.startswith("stage")]
    lengths = [len(line[len("stage 0 ") :].rsplit(maxsplit=2)[0]) for line in bars]
    assert lengths[0] / lengths[-1] == pytest.approx(pair[0].total / pair[1].total, abs=0.02)


@pytest.mark.slow
def test_a_picture_of_both(pair, tmp_path):
    made = draw_comparison(*pair, tmp_path / "both.svg")
    assert [path.name for path in made] == ["both.png", "both.svg"]
    assert all(path.stat().st_size > 10_000 for path in made)
