"""An emulated rank against two real ones, over a shaped link between two network namespaces."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "docs" / "examples" / "emulation"
LINK, TRIES, WITHIN = "rate 1gbit burst 100kb latency 200ms", 4, 0.02
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def allowed():
    """Whether network namespaces can be made here."""
    if not (shutil.which("ip") and shutil.which("tc")):
        return False
    made = subprocess.run(["ip", "netns", "add", "crossflow-try"], capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "del", "crossflow-try"], capture_output=True, check=False)
    return made


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not allowed(), reason="two real ranks over a shaped link need network namespaces, which are not allowed here"),
    pytest.mark.skipif(
        not os.environ.get("CROSSFLOW_MEASURE"), reason="it measures real ranks; set CROSSFLOW_MEASURE=1 on an idle machine"
    ),
]


@pytest.fixture
def real():
    """Run a script on two real ranks, each in a namespace of its own; what the first prints."""
    names = [f"crossflow-{os.getpid()}-{i}" for i in range(2)]
    ends = [f"cfx{os.getpid()}{i}" for i in range(2)]
    with contextlib.ExitStack() as stack:
        for name in names:
            tool("ip", "netns", "add", name)
            stack.callback(tool, "ip", "netns", "del", name)
            tool("ip", "-n", name, "link", "set", "lo", "up")
        tool("ip", "link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for i, (name, end) in enumerate(zip(names, ends, strict=True)):
            tool("ip", "-n", name, "addr", "add", f"10.213.0.{i + 1}/24", "dev", end)
            tool("ip", "-n", name, "link", "set", end, "up")
            tool("tc", "-n", name, "qdisc", "add", "dev", end, "root", "tbf", *LINK.split())

        def run(*words):
            ranks = [
                subprocess.Popen(
                    ["ip", "netns", "exec", name, sys.executable, *map(str, words)],
                    env=ENVIRONMENT | {"RANK": str(i), "WORLD_SIZE": "2", "MASTER_ADDR": "10.213.0.1", "MASTER_PORT": "29513"}
                    | {"GLOO_SOCKET_IFNAME": end},
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                )
                for i, (name, end) in enumerate(zip(names, ends, strict=True))
            ]  # fmt: skip
            said = [rank.communicate(timeout=200)[0] for rank in ranks]
            assert [rank.returncode for rank in ranks] == [0, 0]
            return said[0]

        yield run


def tool(*words):
    subprocess.run(words, check=True)


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_a_step_takes_as_long_as_on_two_real_ranks(real, tmp_path, mode):
    """Delays are measured on the same link in situ; the best of a few tries, for other processes disturb real ranks most."""
    script, delays, found = [SCRIPTS / "sleeping.py", "--mode", mode], tmp_path / "delays.yaml", []
    for _ in range(TRIES):
        real(SCRIPTS / "measure_delays.py", delays, "--sizes", 4e3, 5e5, 1e6, 2e6, 3e6)
        expected = json.loads(real(*script))["step_ms"]
        words = [sys.executable, "-m", "crossflow", "emulate", "--world-size", "2", "--delays", delays, "--", *script]
        done = subprocess.run([*map(str, words)], env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=True)
        found.append(json.loads(done.stdout)["step_ms"] / expected - 1)
        if abs(found[-1]) <= WITHIN:
            return
    raise AssertionError(f"off by {', '.join(f'{one:+.2%}' for one in found)}")
