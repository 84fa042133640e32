"""Gzip streams of repeated texts: what is read back is what was written, number by number."""

import gzip
import io
import json
import zlib

import numpy as np
import pytest
from timelines import pipeline

from crossflow.edges.trace.packed import GzipPieces, RepeatedText, _times, literals, mark, shifted
from crossflow.edges.trace.perfetto import MANY, write_trace


def lines(rng, count, width):
    """Events of a rank whose number is left open, as traces have them."""
    rows = [
        b'{"name":"k%d","pid":%s,"ts":%d.%03d}' % (rng.integers(0, 30), mark(width), rng.integers(0, 10**6), rng.integers(0, 999))
        for _ in range(count)
    ]
    return RepeatedText(b",\n".join(rows), width)


@pytest.mark.parametrize(("width", "count"), [(1, 1), (3, 40), (5, 2000), (8, 300)])
def test_what_is_read_is_the_text_with_each_number(width, count):
    rng = np.random.default_rng(width)
    text, other = lines(rng, count, width), lines(rng, 7, width)
    out, wanted = io.BytesIO(), b""
    stream = GzipPieces(out, 1)
    numbers = [0, 10**width - 1, *rng.integers(0, 10**width, 6).tolist()]
    for i, number in enumerate(numbers):
        if i % 3 == 0:  # ordinary texts between, some that repeat what stood before
            stream.write(b"ordinary" * i)
            wanted += b"ordinary" * i
        for one in (text, other):
            stream.repeat(one, number)
            wanted += one.plain(number)
    stream.close()
    assert gzip.decompress(out.getvalue()) == wanted  # which checks size and checksum too
    assert json.loads(b"[" + text.plain(numbers[1]) + b"]")[0]["pid"] == numbers[1]


def test_characters_of_the_number_that_are_no_codes_of_eight_bits_do_not_occur_elsewhere():
    """Literals from 144 on have nine bits, and lengths from 280 on eight: a text with both is read as zlib reads it."""
    rng = np.random.default_rng(0)
    noise = bytes(rng.integers(128, 256, 500, dtype=np.uint8).tolist())
    text = RepeatedText(noise + mark(4) + b"a" * 5000 + mark(4) + noise[:300] + b"\xff" * 258, 4)
    assert [len(places) for places in literals(text.packed.stream, 4)] == [1, 1, 1, 1]
    out = io.BytesIO()
    stream = GzipPieces(out, 9)
    stream.repeat(text, 1234)
    stream.close()
    assert gzip.decompress(out.getvalue()) == text.plain(1234)


@pytest.mark.parametrize("size", [0, 1, 3, 64, 1000, 123_457])
def test_checksums_of_texts_behind_each_other_combine(size):
    rng = np.random.default_rng(size)
    first, second = (rng.bytes(n) for n in (77, size))
    assert _times(shifted(size), zlib.crc32(first)) ^ zlib.crc32(second) == zlib.crc32(first + second)


def test_a_packed_trace_is_the_plain_one(tmp_path):
    made = pipeline(2, 3, replicas=MANY)
    for name in ("step.json", "step.json.gz"):
        write_trace(made, tmp_path / name, ranks="all")
    assert gzip.decompress((tmp_path / "step.json.gz").read_bytes()) == (tmp_path / "step.json").read_bytes()
    assert len({event["pid"] for event in json.loads((tmp_path / "step.json").read_bytes())["traceEvents"]}) == made.world
