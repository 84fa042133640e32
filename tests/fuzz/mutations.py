# ruff: noqa: E501  (tables of cases)
"""Seeded mutations of files: of their text, of the data that they hold, and of words of the command line."""

import copy
import json
import random

import yaml

BOMB = "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10))])
NASTY = [  # values that no field expects, written as YAML writes them
    0, -1, 1, 2, 3.7, -0.5, 1e-9, 1e9, 1e15, 1e30, 1e-30, 1e300, 1e-300, 1e308, 1e-308, 5e-324, 10**12, 10**18, 10**40, 2**31, 2**32, 2**63, 2**64,
    True, False, None, "", " ", "8", "0", "-3", "true", "null", "nan", ".nan", "inf", "-inf", "1e400", "1" * 400, "9" * 5000, "0x10", "1_000", "1__0", "1e5", "٣",
    "3 W/0", "3 W**9**9**9", "1 W*9**9**9", "3 ((((W))))", "3 " + "W*" * 2000 + "W", "3 W*W*W", "1,5 GB/s", "5 GB", "5 GB/s", "3.35 TB/s", "0 W", "-5 W", "1e400 W", "1e308 W",
    "1e-308 s", "80 GiB", "1 nm2", "1e30 mm2", "4 pJ/bit", "9 us", "1e9 s", "1 flop", "1e20 flop/s", "100 %", "250 %", "-3 %", "3 μs", "5 kg CO2e", "7 USD/hour", "2 W W",
    "x", "a" * 300, "b" * 30_000, "two words", "ü", "日本", "\u202egnp", "x\x1b[2J\x1b]0;owned\x07", "=HYPERLINK(\"http://x\")", "$\\foo$", "a\nb", "../../etc/passwd", "/dev/zero", "/",
    "/etc/shadow", "v100", "h100-sxm", "dgx-h100", "HBM3", "N7", "bf61", "fp6", "fp8", "int8", "l7", "memory", "training", "decode", "gpt3-175b", "lstm", "transformer", "dlrm", "gemm", "ring",
    "torus3d", "fat-tree", "RC-2-2-d2", "CR-8-d64", "tp8-pp8", "tp2", "d512", "tp0", "tp-1", "pp99999999999", "dp1000000000", "legal", "auto", "all", "step_time_s", "cost_usd", "<= 1 s", "<= 1e400 W", ">= nan",
    [], {}, [[]], [1], ["x"], [True], [None], {"a": 1}, {"value": 3}, {"value": "3 W", "source": "x"}, {"value": "3 W", "source": ["x"]}, {"value": "3 W", "source": "x", "low": "-500 W", "high": "1e300 W"},
    {"value": 0.5, "source": "x", "projected": "abc"}, {"value": 0.5, "source": "x", "note": [1]}, {"from": 1, "to": 10, "count": 10**9}, {"from": "1 W", "to": "9 B", "count": 3}, {"from": 0, "to": 1, "count": 3, "scale": "log"},
    {"like": "vllm"}, {"template": "v100"}, {"model": "lstm"}, {"kind": "system"}, list(range(50)), {str(i): i for i in range(50)}, [[[[[[[[1]]]]]]]], {"a": {"b": {"c": {"d": {}}}}},
]  # fmt: skip
KEYS = [
    "x",
    "",
    " ",
    "a.b",
    "foo[0]",
    "$",
    "=1",
    "ü",
    "<<",
    "value",
    "source",
    "model",
    "kind",
    "template",
    "device",
    "extends",
    "like",
    "name",
    "1",
    "true",
    "a" * 500,
    "__class__",
    "\x1b[2J",
]
TEXTS = [
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\x80", b"\r", b"\t", b"\x1b[2J", b"'", b'"', b"{", b"}", b"[", b"]", b": ", b"- ", b"#", b"&a ", b"*a", b"!!python/object/apply:os.system ['touch hit']", b"%", b"|\n", b">-\n", b"? ", b"---\n", b"...\n",
    b"<<: *a\n", b"[" * 100_000, b"{a: " * 5000, b"- " * 5000, b"a" * 20_000, b"\xe2\x80\xa8", b"\xc2\x85", b"9" * 6000, b"? [a, b]\n: 1\n", b"? {a: 1}\n: 1\n", b"a: &x [*x]\n", b"&b b: *b\n", b"a: 1\na: 2\n", BOMB.encode() + b"\n",
]  # fmt: skip


def mutate(content: bytes, rng: random.Random, others: list[bytes], *, is_json: bool) -> bytes:
    """A file with one to three mutations: of its data where it can be read, of its text else."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        changed = _data(content, rng, others, is_json=is_json) if rng.random() < 0.6 else None
        content = _text(content, rng, others) if changed is None else changed
    return content


def _text(content: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    lines = content.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    at, end = sorted((rng.randrange(len(content) + 1), rng.randrange(len(content) + 1)))
    way = rng.randrange(12)
    if way == 0:
        return content[:at] + rng.choice(TEXTS) + content[at:]
    if way == 1:
        return content[:at] + content[min(end, at + 40) :]
    if way == 2:
        return content[:at]
    if way == 3:
        return content[:at] + rng.randbytes(rng.choice((1, 3, 50))) + content[at:]
    if way == 4:
        lines[i], lines[j] = lines[j], lines[i]
    elif way == 5:
        lines.insert(i, lines[j])
    elif way == 6:
        del lines[i]
    elif way == 7:
        lines[i] = b" " * rng.randrange(5) + lines[i].lstrip()
    elif way == 8:
        lines.insert(i, rng.choice(TEXTS))
    elif way == 9:
        return rng.choice(
            (content.decode("utf-8", "replace").encode("utf-16"), content.decode("utf-8", "replace").encode("utf-16-le"), b"", content * 3)
        )
    elif way == 10:
        other = rng.choice(others).split(b"\n")
        lines[i : i + 1] = other[: rng.randrange(len(other) + 1)]
    else:
        head, mark, _ = lines[i].partition(b": ")
        lines[i] = head + mark + json.dumps(rng.choice(NASTY), ensure_ascii=False).encode()
    return b"\n".join(lines)


def _data(content: bytes, rng: random.Random, others: list[bytes], *, is_json: bool) -> bytes | None:
    data = _loaded(content)
    places = [] if data is None else list(_places(data))
    if not places:
        return None
    data = copy.deepcopy(data)
    path, key = rng.choice(places)
    held = data
    for part in path:
        held = held[part]
    way = rng.randrange(9)
    if way <= 3:
        held[key] = copy.deepcopy(rng.choice(NASTY))
    elif way == 4:
        del held[key]
    elif way == 5 and isinstance(held, dict):
        held[rng.choice(KEYS) if rng.random() < 0.5 else _misspelt(str(key), rng)] = held.pop(key)
    elif way == 6:
        held[key] = _scaled(held[key], rng)
    else:  # what stands elsewhere, in this file or another
        other = _loaded(rng.choice(others)) if way == 7 else data
        found = list(_places(other)) if other is not None else places
        source, last = rng.choice(found or places)
        taken = other if found and other is not None else data
        for part in source:
            taken = taken[part]
        held[key] = copy.deepcopy(taken[last])
    return (
        json.dumps(data)
        if is_json
        else yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=rng.choice((None, False)))
    ).encode("utf-8", "replace")


def _loaded(content: bytes):
    try:
        data = (
            json.loads(content)
            if content[:1] in b"{["
            else yaml.safe_load(content)
            if len(content) < 300_000 and b"&" not in content
            else None
        )
    except Exception:
        return None
    return data if isinstance(data, dict | list) and data else None


def _places(data, path=()):
    """Every place of plain data: the path of a container, and a key of it."""
    for key, below in list(data.items() if isinstance(data, dict) else enumerate(data)):
        yield path, key
        if isinstance(below, dict | list):
            yield from _places(below, (*path, key))


def _misspelt(word: str, rng: random.Random) -> str:
    i = rng.randrange(len(word) + 1)
    return rng.choice((word[:i] + word[i + 1 :], word[:i] + rng.choice("aex_[.0") + word[i:], word.upper(), word[::-1]))


def _scaled(value, rng: random.Random):
    """A number times a power of ten, that of a text too."""
    factor = 10.0 ** rng.choice((-300, -30, -12, -6, -3, -1, 1, 3, 6, 9, 12, 18, 30, 300))
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return [value]
    if isinstance(value, str):
        number, blank, unit = value.partition(" ")
        try:
            return f"{float(number) * factor:g}{blank}{unit}"
        except ValueError:
            return _misspelt(value, rng)
    return int(value * factor) if isinstance(value, int) and abs(factor) > 1 else value * factor


def words(path: str, rng: random.Random) -> str:
    """One setting as `--set` takes it: of a real path or a broken one, to a value that it does not expect."""
    parts = path.split(".")
    way = rng.randrange(6)
    if way == 0:
        parts[rng.randrange(len(parts))] = rng.choice(KEYS)
    elif way == 1:
        parts.append(rng.choice((*KEYS, "0", "-1", "999")))
    elif way == 2:
        parts = [_misspelt(part, rng) for part in parts]
    value = rng.choice(NASTY)
    text = (
        rng.choice(("", "=", "{", "[", "{a: 1", "[1, 2", "&a", "*a", "!!x", "'", "{" * 3000))
        if way == 3
        else value
        if isinstance(value, str)
        else json.dumps(value)
    )
    return f"{'.'.join(parts)}={text}".replace("\0", "")


def strategy(text: str, rng: random.Random) -> str:
    """A strategy in text with a few letters changed."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        i = rng.randrange(len(text) + 1)
        text = rng.choice(
            (
                text[:i] + text[i + 1 :],
                text[:i] + rng.choice("-0123456789tpdevzcsRC@,:{}% ") + text[i:],
                text + "-" + text,
                text[:i] + "9" * rng.choice((1, 12, 400)) + text[i:],
                text[i:],
            )
        )
    return text.replace("\0", "")
