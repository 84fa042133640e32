"""Workers: the same results wherever tasks run, and lost workers that cost nothing but time."""

import contextlib
import os
import pkgutil
import re
import signal
import struct
import threading
import time

import pytest
from tasks import always_deadly, deadly, slowly, square

from crossflow import __version__
from crossflow.answers import workers as hands
from crossflow.answers.study import sweeps
from crossflow.answers.study.run import run_study
from crossflow.answers.workers import in_order, workers
from crossflow.base.errors import CrossflowError

distributed = pytest.importorskip("distributed")


@contextlib.contextmanager
def cluster(count):
    """A real local cluster of worker processes, each with one thread."""
    with distributed.LocalCluster(
        n_workers=count, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0, silence_logs=50
    ) as made:
        yield made


@pytest.mark.slow
def test_results_come_with_their_numbers_here_and_in_processes():
    for jobs in (1, 2):
        with workers(jobs) as made:
            assert sorted(made.completed(square, range(20))) == [(i, i * i) for i in range(20)]
            assert list(in_order(made.completed(square, range(20)))) == [i * i for i in range(20)]


@pytest.mark.slow
def test_tasks_are_taken_as_they_are_needed():
    taken = []

    def tasks():
        for i in range(1000):
            taken.append(i)
            yield i

    with workers(2) as made:
        results = made.completed(square, tasks())
        next(results)
        assert len(taken) < 20
        results.close()


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_its_tasks_done_again(tmp_path):
    tasks = [(i, str(tmp_path / "marker")) for i in range(12)]
    with workers(2) as made:
        assert sorted(made.completed(deadly, tasks)) == [(i, i * i) for i in range(12)]
    assert (tmp_path / "marker").exists()


@pytest.mark.slow
def test_a_pool_that_is_found_broken_when_a_task_is_sent_is_replaced():
    """The pool learns of a process that died between the results of one task and the sending of the next."""
    with workers(2) as made:

        def tasks():
            yield from range(7)  # one more than are sent at once
            pool = made._open()
            for process in list(pool._processes.values()):
                process.kill()
            while not pool._broken:
                time.sleep(0.01)
            yield from range(7, 12)

        assert sorted(made.completed(square, tasks())) == [(i, i * i) for i in range(12)]


def begun(pool):
    """Let the pool have read the beginning of a result that is never sent to its end."""
    pool._result_queue._writer._send(struct.pack("!i", 1_000_000))


@pytest.mark.slow
def test_a_pool_ends_though_a_process_died_in_the_middle_of_its_result():
    pool = hands._Pool(1)
    assert pool.submit(square, 3).result() == 9
    begun(pool)
    ending = threading.Thread(target=pool.end, daemon=True)
    ending.start()
    ending.join(30)
    assert not ending.is_alive()


@pytest.mark.slow
def test_a_process_that_died_in_the_middle_of_its_result_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(hands, "PULSE", 0.5)
    tasks, made = [(i, str(tmp_path / "marker")) for i in (5, 1, 2)], hands.Processes(jobs=1)
    begun(made._open())
    try:
        assert sorted(made.completed(deadly, tasks)) == [(0, 25), (1, 1), (2, 4)]
    finally:
        made.close()


@pytest.mark.slow
def test_a_task_that_kills_every_process_ends_with_an_error(exactly):
    sentence = "worker processes died 3 times in a row (out of memory?); finished points are kept, continue with --resume and fewer --jobs"
    with workers(2) as made, pytest.raises(CrossflowError, match=exactly(sentence)):
        list(made.completed(always_deadly, range(4)))


@pytest.mark.slow
def test_an_error_of_a_task_is_the_error_of_the_study():
    with workers(2) as made, pytest.raises(TypeError):
        list(made.completed(square, [1, 2, "x", None]))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_cluster_whose_worker_is_killed_finishes():
    with cluster(2) as made, workers(dask=made.scheduler_address) as cluster_workers:
        results, victim = [], next(iter(made.workers.values()))
        for number, result in cluster_workers.completed(slowly, range(20)):
            results.append((number, result))
            if len(results) == 3:
                os.kill(victim.pid, signal.SIGKILL)
        assert sorted(results) == [(i, i * i) for i in range(20)]


@pytest.mark.slow
def test_a_scheduler_that_goes_away_ends_with_an_error(monkeypatch):
    monkeypatch.setattr(hands, "PATIENCE", 1.5)
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50) as made,
        workers(dask=made.scheduler_address) as cluster_workers,
    ):
        results = cluster_workers.completed(slowly, range(1000))
        next(results)
        made.close()
        with pytest.raises(CrossflowError, match=r"^lost the scheduler at tcp://.*; finished points are kept, continue with --resume$"):
            list(results)
        with pytest.raises(CrossflowError, match=r"^lost the scheduler at tcp://.*; finished points are kept, continue with --resume$"):
            list(cluster_workers.completed(slowly, range(3)))  # the next search of the study


def asked(answers):
    """A client whose workers answer so."""

    class Client:
        def run(self, function, *given, on_error):
            assert (function, given, on_error) == (pkgutil.resolve_name, ("crossflow:__version__",), "return")
            return answers

    return Client()


def test_workers_of_another_version_are_refused_in_one_sentence():
    with pytest.raises(CrossflowError) as told:
        hands._check_versions(asked({"tcp://b:1": "0.0.1", "tcp://a:1": __version__}), "tcp://s:1")
    assert str(told.value) == (
        f"--dask tcp://s:1: the worker tcp://b:1 has crossflow 0.0.1, and this is {__version__}, whose figures may be others; install the"
        " same on all"
    )
    with pytest.raises(CrossflowError, match=rf"^--dask x: the worker a has no crossflow; install {re.escape(__version__)} there$"):
        hands._check_versions(asked({"a": ModuleNotFoundError("crossflow")}), "x")
    hands._check_versions(asked({"a": __version__, "b": OSError("lost meanwhile")}), "x")


def test_a_worker_that_joins_with_another_version_does_no_task():
    assert hands._alike(__version__, square, 3) == 9
    with pytest.raises(CrossflowError, match=r"^a worker that joined has crossflow .*, and the study that of 0\.0\.1; install"):
        hands._alike("0.0.1", square, 3)


STUDY = {
    "name": "many",
    "scenario": {"system": {"template": "v100"}, "workload": {"model": "gemm", "m": 1024, "n": 1024, "k": 1024, "dtype": "fp16"}},
    "sweep": {"system.budgets.power": {"from": "150 W", "to": "400 W", "count": 40}},
    "plots": [],
}


@pytest.mark.thorough
@pytest.mark.slow
def test_a_study_on_a_cluster_that_loses_a_worker_is_that_of_one_process(tmp_path, monkeypatch):
    """Workers that are killed in the middle, and slow ones, change no byte."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(sweeps, "TASK", 4)
    with cluster(2) as made:
        killed = []

        def kill(done, total, best):
            if done >= 6 and not killed:
                killed.append(next(iter(made.workers.values())).pid)
                os.kill(killed[0], signal.SIGKILL)

        run_study(STUDY, out=tmp_path / "here", format="parquet")
        run_study(STUDY, out=tmp_path / "there", format="parquet", dask=made.scheduler_address, progress=kill)
        assert killed
    here, there = ({path.name: path.read_bytes() for path in (tmp_path / place).iterdir()} for place in ("here", "there"))
    assert here == there


@pytest.mark.thorough
@pytest.mark.slow
def test_a_cluster_of_another_version_is_refused_before_a_point_is_run(tmp_path, monkeypatch):
    with cluster(1) as made:
        monkeypatch.setattr(hands, "__version__", "0.0.1")
        with pytest.raises(CrossflowError, match=r"the worker tcp://.* has crossflow .*install the same on all$"):
            run_study(STUDY, out=tmp_path / "out", dask=made.scheduler_address)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("nonsense", "expected the address of a scheduler, such as tcp://10.0.0.1:8786"),
        ("tcp://a b:1", "expected the address of a scheduler, such as tcp://10.0.0.1:8786"),
        ("tcp://no.such.host.invalid:8786", "there is no such host"),
    ],
)
def test_what_is_no_address_is_told_at_once(address, sentence):
    before = time.monotonic()
    with pytest.raises(CrossflowError) as told, workers(dask=address):
        pass
    assert str(told.value).startswith(f"--dask {address}: {sentence}")
    assert time.monotonic() - before < 10


@pytest.mark.thorough
@pytest.mark.slow
def test_no_scheduler_is_told(monkeypatch):
    address = "tcp://127.0.0.1:1"
    monkeypatch.setattr(hands, "PATIENCE", 1.0)
    with pytest.raises(CrossflowError, match=rf"^--dask {re.escape(address)}: no scheduler answers there \("), workers(dask=address):
        pass


def test_a_scheduler_that_is_lost_between_two_searches_is_named():
    class Client:
        def get_executor(self, **_):
            raise RuntimeError("ConnectionPool closing.")

    sentence = r"^lost the scheduler at tcp://x:1 \(RuntimeError\); finished points are kept, continue with --resume$"
    with pytest.raises(CrossflowError, match=sentence):
        list(hands.Cluster(client=Client(), address="tcp://x:1").completed(square, [1]))


def test_no_jobs_are_refused(exactly):
    with pytest.raises(CrossflowError, match=exactly("--jobs must be at least 1, got 0")), workers(0):
        pass
