# ruff: noqa: T201  (a command)
"""Say which recorded figures have moved, or record them as they are now: python -m tests.recorded [--write]."""

import argparse
import json

from tests.recorded.figures import RECORD, cases, figures, moved, recorded


def main() -> int:
    """Print every figure that moved; 0 where none did, or where it was written down."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded", description=__doc__)
    parser.add_argument("--write", action="store_true", help="record the figures as they are now")
    write = parser.parse_args().write
    before, after = recorded(), {name: figures(case) for name, case in cases().items()}
    differing = {name: moved(before.get(name, {}), found) for name, found in after.items()}
    for name, changes in differing.items():
        for what, old, new in changes:
            print(f"{name}: {what}: {old} -> {new}")
    print(f"{sum(map(bool, differing.values()))} of {len(after)} cases moved")
    if write:
        lines = [json.dumps({"case": name, **found}, separators=(",", ":"), ensure_ascii=False) for name, found in after.items()]
        RECORD.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return int(not write and any(differing.values()))


if __name__ == "__main__":
    raise SystemExit(main())
