"""What needs the operating system lives in one module, and all that people do works without what Windows lacks."""

import ast
import json
import os
import re
import subprocess
import sys

import pytest

import crossflow
from crossflow.answers.study import findings
from crossflow.base import names, platforms
from tests.test_layers import MODULES, ROOT, calls, imports, nodes_of

# They measure and emulate with the machine itself, and say which system they need.
APART = ("evidence/emulation", "evidence/measurement")
OWN = "base/platforms.py"
SHARED = [path for path in MODULES if not path.relative_to(ROOT).as_posix().startswith((*APART, OWN))]
# Modules, functions and signals that some systems lack (docs.python.org, "Availability"), or that ask where one is.
LACKING = """
fcntl msvcrt resource pwd grp spwd crypt termios tty pty curses readline syslog winreg winsound posix nt _winapi ctypes platform
asyncio.unix_events multiprocessing.popen_fork multiprocessing.shared_memory
"""
CALLS = """
fork forkpty getuid geteuid getgid getegid setuid setgid setsid setpgid getpgid killpg nice sync mkfifo mknod chown lchown chroot
getloadavg sysconf statvfs uname sched_setaffinity sched_getaffinity sched_yield posix_spawn pidfd_open memfd_create register_at_fork
wait3 wait4 O_NOFOLLOW O_CLOEXEC O_TMPFILE O_DIRECTORY kill replace rename startfile name
"""
SIGNALS = "SIGHUP SIGKILL SIGSTOP SIGCONT SIGQUIT SIGUSR1 SIGUSR2 SIGCHLD SIGPIPE SIGALRM SIGTSTP SIGWINCH"
OF_SIGNALS = f"{SIGNALS} pthread_sigmask pthread_kill alarm setitimer sigwait pause SIG_BLOCK SIG_UNBLOCK SIG_SETMASK"
ONLY_SOME = set(LACKING.split())
FORBIDDEN = {"os": set(CALLS.split()), "signal": set(OF_SIGNALS.split()), "sys": {"platform", "getwindowsversion"}}
PLACES = ("/proc", "/sys/", "/dev/", "/etc/", "/tmp/", "/var/", "C:\\")

ANY = re.compile(  # what can be in a module: few are read as a tree
    "|".join(
        [rf"^ *(?:import|from) +(?:{'|'.join(map(re.escape, ONLY_SOME))})\b", rf"[\"'](?:{'|'.join(map(re.escape, PLACES))})"]
        + [rf"\b{module}\.(?:{'|'.join(listed)})\b" for module, listed in FORBIDDEN.items()]
    ),
    re.MULTILINE,
)


def asked(path):
    """What a module asks of some operating systems only, with its line."""
    if not ANY.search(path.read_text(encoding="utf-8")):
        return
    docstrings = {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}
    yield from (f"{node.lineno}: {name}" for node, name in imports(path) if {name, name.rpartition(".")[0]} & ONLY_SOME)
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in FORBIDDEN.get(node.value.id, ()):
            yield f"{node.lineno}: {node.value.id}.{node.attr}"
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings and node.value.startswith(PLACES)
        ):
            yield f"{node.lineno}: {node.value!r}"


def test_one_module_asks_what_only_some_systems_have():
    found = [f"{path.relative_to(ROOT).as_posix()}:{told}" for path in SHARED for told in asked(path)]
    assert found == []
    assert len(list(asked(ROOT / OWN))) > 10  # it is looked for rightly


ASKED = {"read_text": {"encoding"}, "write_text": {"encoding", "newline"}}  # what each call says, so that bytes are the same everywhere


def texts_opened(path):
    """Lines that open a file as text and leave its encoding, or the ends of the lines that they write, to the machine."""
    if not re.search(r"open\(|_text\(", path.read_text(encoding="utf-8")):
        return
    for node in calls(path):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = node.func.value.id if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) else ""
        if owner in ("files", "tarfile", "webbrowser", "os", "gzip") and name != "fdopen":
            continue
        given, at = {one.arg for one in node.keywords}, {"open": 0 if isinstance(node.func, ast.Attribute) else 1, "fdopen": 1}.get(name)
        if at is not None:
            mode = next(
                (
                    one.value
                    for one in (*node.args[at : at + 1], *(word.value for word in node.keywords if word.arg == "mode"))
                    if isinstance(one, ast.Constant)
                ),
                "r",
            )
            if "b" not in str(mode) and not ({"encoding"} if str(mode).startswith("r") else {"encoding", "newline"}) <= given:
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node.func, ast.Attribute) and name in ASKED and not ASKED[name] <= given:
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_every_text_says_its_encoding():
    """The bytes of files are the same everywhere: Windows would take another encoding."""
    known = {"__main__.py"}  # streams that were closed: nothing is read or written
    found = [f"{path.relative_to(ROOT).as_posix()}:{told}" for path in SHARED for told in texts_opened(path)]
    assert [told for told in found if told.partition(":")[0] not in known] == []


# ------------------------------------------------------------------------------------------ without what Windows lacks

# Read before all else by every process of the run, those of a pool too. The standard library has read by then what it needs itself to start
# processes here; what it asks later is answered by what is kept under its own names.
WITHOUT = '''
import importlib.machinery, os, signal, stat, sys
import concurrent.futures.process, multiprocessing.connection, multiprocessing.popen_spawn_posix, multiprocessing.resource_tracker
import subprocess
import multiprocessing.popen_fork as popen

multiprocessing.resource_tracker._HAVE_SIGMASK = False
kill, replace, unlink, listdir, state = os.kill, os.replace, os.unlink, os.listdir, os.fstat
popen.Popen.kill = lambda self: self.returncode is None and kill(self.pid, 9)
popen.Popen.terminate = popen.Popen.kill
for name in ("fcntl", "resource", "termios", "tty", "pwd", "grp", "syslog", "readline", "curses"):
    sys.modules[name] = None
for name in "SIGNALS".split():
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("fork", "forkpty", "getuid", "geteuid", "getgid", "killpg", "setsid", "getpgid", "nice", "sync", "mkfifo", "sysconf",
             "getloadavg", "sched_getaffinity", "O_NOFOLLOW", "O_CLOEXEC", "statvfs"):
    delattr(os, name)
def ended(process, number):
    raise AssertionError(f"os.kill({process}, {number}) ends a process of Windows")
os.kill = ended
def is_open(path):
    """Whether this process has a file open, which can then be neither removed nor replaced."""
    try:
        there = os.stat(path)
    except OSError:
        return False
    for one in range(3, 256):
        try:
            held = state(one)
        except OSError:
            continue
        if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino) and stat.S_ISREG(held.st_mode):
            return True
    return False
def checked(function):
    def call(*paths, **words):
        if any(is_open(path) for path in paths):
            raise PermissionError(13, "it is open", *map(str, paths[:1]))
        return function(*paths, **words)
    return call
os.replace, os.rename, os.unlink, os.remove = checked(replace), checked(os.rename), checked(unlink), checked(os.remove)
def watched(event, words):
    if event in ("open", "os.listdir", "os.scandir") and str(words[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "there is no such place", str(words[0]))
sys.addaudithook(watched)
class Seen:
    def find_spec(self, name, path=None, target=None):
        """Be Windows for the one module that asks; pools of the standard library need this system as it is."""
        if name == "crossflow.base.platforms":
            found = importlib.machinery.PathFinder.find_spec(name, path)
            execute = found.loader.exec_module
            def read(module):
                before, sys.platform = sys.platform, "win32"
                try:
                    execute(module)
                finally:
                    sys.platform = before
            found.loader.exec_module = read
            return found
sys.meta_path.insert(0, Seen())
'''.replace("SIGNALS", OF_SIGNALS)
RUN = """
import contextlib, io, json, sys, threading, urllib.request
from pathlib import Path
from crossflow.__main__ import main
from crossflow.base import platforms

def run(*words):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = main(words)
    return [status, said.getvalue()]

if __name__ == "__main__":
    scenario, study = "scenario.yaml", "study.yaml"
    told = {"predict": run("predict", scenario, "-o", "predicted.json", "-v")}
    told["plan"] = run("plan", scenario, "--export", "megatron", "-o", "flags.sh")
    told["serve"] = run("serve", "served.yaml", "--json")
    told["study"] = run("study", study, "--out", "two", "--jobs", "2")
    told["alone"] = run("study", study, "--out", "one")
    kept = json.loads(Path("two/run.json").read_text(encoding="utf-8"))
    Path("two/run.json").write_text(json.dumps(kept | {"finished": False}), encoding="utf-8")
    lines = Path("two/points.jsonl").read_bytes().splitlines(keepends=True)
    Path("two/points.jsonl").write_bytes(b"".join(lines[:550]))  # of the second task a part: as of a run that was killed
    told["resume"] = run("study", study, "--out", "two", "--resume")
    told["export"] = run("explore", "product.yaml", "--export", "page.html")

    import crossflow
    from crossflow.edges.explore.scenario import scenario_app
    from crossflow.edges.explore.server import TOKEN_HEADER, ExploreServer

    app = scenario_app(crossflow.load(scenario))
    with ExploreServer(app) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        told["page"] = [0, urllib.request.urlopen(server.url).read().decode()[:15]]
        for name in ("evaluate", "timeline"):  # in this process, and in the one beside it
            head = {TOKEN_HEADER: server.token, "Content-Type": "application/json"}
            with urllib.request.urlopen(urllib.request.Request(f"{server.url}api/{name}", b"{}", head)) as answer:
                told[name] = [answer.status, sorted(json.load(answer))]
        server.shutdown()
        app.close()
    print(json.dumps({"windows": platforms.WINDOWS, "fcntl": platforms.fcntl is not None, **told}))
"""
SCENARIO = "system: {template: dgx-h100}\nworkload: {model: llama3-8b, task: training, global_batch: 32}\nstrategy: {tp: 8}\n"
PRODUCT = "system: v100\nworkload: {model: gemm, m: 64, n: 64, k: 64, dtype: fp16}\n"
# Two tasks, so that a pool is used.
STUDY = f"scenario: product.yaml\nsweep: {{workload.m: {list(range(1, 601))}}}\nplots: []\n"
SERVED = (
    "system: {template: dgx-h100, devices: 1}\nworkload: {model: llama3-8b, task: serving, dtype: bf16}\nstrategy: tp1\nsoftware: vllm\n"
    "requests: {arrivals: {law: poisson, rate: 5 1/s}, count: 20, prompt: 200, output: 20, seed: 1}\n"
)


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_all_that_people_do_works_without_what_windows_lacks(tmp_path):
    for name, text in {
        "scenario.yaml": SCENARIO,
        "product.yaml": PRODUCT,
        "study.yaml": STUDY,
        "served.yaml": SERVED,
        "sitecustomize.py": WITHOUT,
        "run.py": RUN,
    }.items():
        (tmp_path / name).write_text(text)
    places = os.pathsep.join(filter(None, [str(tmp_path), str(ROOT.parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": places, "PYTHONIOENCODING": "cp1252", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "run.py"], capture_output=True, cwd=tmp_path, env=environment, check=False, timeout=600)
    assert done.returncode == 0, done.stderr.decode("cp1252")
    told = json.loads(done.stdout)
    assert (told.pop("windows"), told.pop("fcntl")) == (True, False)
    assert {name: status for name, (status, _) in told.items()} == dict.fromkeys(told, 0) | {"evaluate": 200, "timeline": 200}
    assert b"this system does not say how much memory" in done.stderr
    assert json.loads((tmp_path / "predicted.json").read_text())["step_time_s"] == crossflow.predict(tmp_path / "scenario.yaml").step_time_s
    assert (tmp_path / "one/points.csv").read_bytes() == (tmp_path / "two/points.csv").read_bytes()
    assert len((tmp_path / "one/points.jsonl").read_bytes().splitlines()) == 600
    assert (tmp_path / "page.html").read_bytes().startswith(b"<!doctype html>")


def test_a_pool_is_no_larger_than_its_system_can_wait_for(monkeypatch, exactly):
    from crossflow.answers import workers
    from crossflow.base.errors import CrossflowError

    monkeypatch.setattr(workers, "MOST_PROCESSES", 61)
    sentence = "--jobs must be at most 61 on this system, got 62; a cluster (--dask) takes more"
    with pytest.raises(CrossflowError, match=exactly(sentence)), workers.workers(62):
        pass
    with workers.workers(61):
        pass


def test_a_file_that_another_reads_is_replaced_as_soon_as_it_can_be(tmp_path, monkeypatch):
    refusals, real = [1, 2, 3], os.replace

    def refused(source, target):
        if refusals:
            raise PermissionError(refusals.pop(), "it is open")
        real(source, target)

    monkeypatch.setattr(platforms, "WINDOWS", True)
    monkeypatch.setattr(os, "replace", refused)
    (tmp_path / "a").write_text("new")
    platforms.replace(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "new"
    refusals += [13] * 1000
    monkeypatch.setattr(platforms, "PATIENCE", 0.05)
    (tmp_path / "a").write_text("newer")
    with pytest.raises(PermissionError):
        platforms.replace(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("name", ["a:b.png", "aux.png", "what?.png", "COM1"])
def test_a_name_that_windows_cannot_have_is_refused_there(monkeypatch, name):
    assert names.own_file(name) == name
    monkeypatch.setattr(platforms, "WINDOWS", True)
    with pytest.raises(ValueError, match=f"^Windows can have no file of the name '{name.replace('?', '.')}'; give another one, such as '"):
        names.own_file(name)


def test_names_that_differ_in_letter_case_alone_are_two_files():
    assert findings._apart(["best/A", "best/b", "best/a", "best/B"], [1, 2, 3, 4]) == ["best/A", "best/b", "best/a-3", "best/B-4"]


def test_what_needs_groups_of_processes_is_refused_on_windows(monkeypatch):
    from crossflow.base.errors import CrossflowError
    from crossflow.evidence.emulation import processes

    monkeypatch.setattr(processes, "WINDOWS", True)
    settings = processes.RunSettings(world_size=2, real=(0,), system="dgx-h100")
    with pytest.raises(CrossflowError, match="which Windows lacks: run it on Linux or macOS"):
        processes.emulate(settings, ["script.py"])
