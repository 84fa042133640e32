"""What people do, on whatever system this is, with an installed crossflow: ``python .ci/everywhere.py``, in an empty folder.

It predicts, plans, compares, replays requests, runs a study with two processes, resumes one that is half done, writes a page, and asks a
served one. Run it with the Python that crossflow is installed for; it ends with an error where anything goes wrong.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

SCENARIO = "system: {template: dgx-h100}\nworkload: {model: llama3-8b, task: training, global_batch: 32}\nstrategy: {tp: 8}\n"
SERVED = (
    "system: {template: dgx-h100, devices: 1}\nworkload: {model: llama3-8b, task: serving, dtype: bf16}\nstrategy: tp1\nsoftware: vllm\n"
    "requests: {arrivals: {law: poisson, rate: 5 1/s}, count: 50, prompt: 200, output: 20, seed: 1}\n"
)
STUDY = f"""name: 'points of a product: "600"'
scenario: {{system: v100, workload: {{model: gemm, m: 64, n: 64, k: 64, dtype: fp16}}}}
sweep: {{workload.m: {[*range(1, 601)]}}}
plots: [{{kind: lines, name: time, x: workload.m, y: step_time_s}}]
"""
COMMAND = (sys.executable, "-m", "crossflow")


def said(folder: Path, *words: str) -> str:
    """What a command prints; an error where it fails."""
    done = subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    sys.stdout.write(f"{words[0]}: fine\n")
    return done.stdout


def resumed(folder: Path) -> None:
    """Resume a study of which half is done, and compare its files with those of one that was not disturbed."""
    said(folder, "study", "study.yaml", "--out", "two", "--jobs", "2")
    said(folder, "study", "study.yaml", "--out", "one")
    run, points = folder / "two" / "run.json", folder / "two" / "points.jsonl"
    run.write_text(json.dumps(json.loads(run.read_text(encoding="utf-8")) | {"finished": False}), encoding="utf-8")
    points.write_bytes(b"".join(points.read_bytes().splitlines(keepends=True)[:550]))
    said(folder, "study", "study.yaml", "--out", "two", "--resume", "--jobs", "2")
    for name in ("points.csv", "points.jsonl", "time.svg"):
        if (folder / "one" / name).read_bytes() != (folder / "two" / name).read_bytes():
            sys.exit(f"{name} of two jobs, resumed, is not that of one")


def shown(folder: Path) -> None:
    """Ask a page that is served."""
    words = [*COMMAND, "explore", "scenario.yaml", "--no-browser", "--json"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, encoding="utf-8") as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["url"]
        try:
            with urllib.request.urlopen(address, timeout=60) as page:
                found = page.read()
        finally:
            server.terminate()
    if not found.startswith(b"<!doctype html>"):
        sys.exit("the page is none")
    sys.stdout.write("explore: answers\n")


def main() -> None:
    """Do all of it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # processes of a page may take a moment to leave it
        folder = Path(name)
        for file, text in {"scenario.yaml": SCENARIO, "served.yaml": SERVED, "study.yaml": STUDY}.items():
            (folder / file).write_bytes(text.replace("\n", "\r\n").encode())  # as an editor of Windows saves it
        time = json.loads(said(folder, "predict", "scenario.yaml", "--json", "-v"))["step_time_s"]
        if not 0.0 < time < 10.0:
            sys.exit(f"a step of {time} s")
        said(folder, "plan", "scenario.yaml", "--export", "megatron", "-o", "flags.sh")
        said(folder, "compare", "--model", "llama3-8b", "--on", "dgx-h100,dgx-a100", "--devices", "8")
        said(folder, "serve", "served.yaml")
        resumed(folder)
        said(folder, "explore", "scenario.yaml", "--export", "page.html")
        shown(folder)


if __name__ == "__main__":
    main()
