"""Workers that die, freeze and vanish behind a broken network, on a real Ray of several machines;
candidates that crash, hang and eat all memory; MLflow that goes away in mid-job."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests import models
from tests.command import Done, finish, start
from tests.farms import Farm, farm_of
from tests.mlflow_server import MlflowServer
from tests.torture.conftest import Report
from tunefarm.home import Home
from tunefarm.results.journal import Journal

pytestmark = pytest.mark.torture
TIMES = int(os.environ.get("TORTURE_TIMES", "20"))
WORKERS = ("ray::MeasureWorker", "ray::BuildWorker", "ray::SearchWorker")


@pytest.fixture
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with farm_of(tmp_path_factory.mktemp("farm"), "first", "second") as found:
        yield found


def workers(farm: Farm, *names: str) -> list[psutil.Process]:
    """Ray's actors of those kinds, on all machines, that run."""
    found = []
    for machine in farm.machines:
        for process in machine.processes():
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if title.startswith(names or WORKERS) and process.status() != "stopped":
                    found.append(process)
    return found


def afflicted(
    farm: Farm, model: Path, times: int, every_s: float, harm: Callable[[], int]
) -> Counter[str]:
    """Jobs one after the other while `harm` is done, until that was done `times` times."""
    found: Counter[str] = Counter()
    while found["faults"] < times:
        process = farm.submit(model, "--trials", 300, "--retune", "--name", f"job{found['jobs']}")
        with ThreadPoolExecutor(1) as reader:  # who is not read from stops writing
            done = reader.submit(finish, process, 1800)
            due = time.monotonic()
            while not done.done() and found["faults"] < times:
                if time.monotonic() > due and workers(farm, "ray::MeasureWorker"):
                    due = time.monotonic() + every_s
                    found["faults"] += harm()
                time.sleep(0.2)
            (farm.place / f"job{found['jobs']}.err").write_text(done.result().err)
        found.update(finished(farm, done.result()))
    assert not await_none(lambda: workers(farm)), "no worker is left behind"
    return found


def finished(farm: Farm, done: Done) -> Counter[str]:
    """What a job that went well has come to."""
    assert done.code == 0, done.err[-5000:]
    assert done.json["targets"]["llvm"]["verdict"] == "FASTER"
    assert done.json["targets"]["llvm"]["parity"]["passed"]
    journal = Journal(farm.head.home)
    made = journal.measurements(done.json["job"], "llvm", ("screen",))
    failed = journal.failures(done.json["job"], "llvm")
    journal.close()
    assert len(made) == len({m.candidate for m in made}), "nothing twice"
    assert not {m.candidate for m in made} & {row["candidate"] for row in failed}
    kinds = Counter(row["kind"] for row in failed)
    return Counter(
        {"jobs": 1, "results": len(made), **{f"failed: {k}": n for k, n in kinds.items()}}
    )


def await_none(what: Callable[[], list[psutil.Process]], seconds: float = 60) -> list[str]:
    until = time.monotonic() + seconds
    while (found := what()) and time.monotonic() < until:
        time.sleep(0.5)
    return [" ".join(process.cmdline())[:100] for process in found]


@pytest.mark.timeout(7200)
def test_workers_killed(farm: Farm, tmp_path: Path, report: Report) -> None:
    chance = random.Random(1)

    def harm() -> int:
        victim = chance.choice(workers(farm))
        with contextlib.suppress(psutil.Error):
            victim.kill()
        return 1

    report(**afflicted(farm, models.cnn(tmp_path / "cnn.onnx"), TIMES, 4.0, harm))


@pytest.mark.timeout(7200)
def test_children_of_workers_killed(farm: Farm, tmp_path: Path, report: Report) -> None:
    """Those that run candidates, and those that compile them."""
    chance = random.Random(2)

    def harm() -> int:
        children = [c for worker in workers(farm) for c in worker.children(recursive=True)]
        if not children:
            return 0
        with contextlib.suppress(psutil.Error):
            chance.choice(children).kill()
        return 1

    report(**afflicted(farm, models.cnn(tmp_path / "cnn.onnx"), TIMES, 2.0, harm))


@pytest.mark.timeout(7200)
def test_workers_frozen(farm: Farm, tmp_path: Path, report: Report) -> None:
    """Stopped, not dead: nobody is told, and they hold their devices."""

    def harm() -> int:
        frozen = 0
        for victim in workers(farm):
            with contextlib.suppress(psutil.Error):
                victim.suspend()
                frozen += 1
        return frozen

    report(**afflicted(farm, models.cnn(tmp_path / "cnn.onnx"), TIMES, 75.0, harm))


@pytest.mark.timeout(7200)
def test_machines_killed(farm: Farm, tmp_path: Path, report: Report) -> None:
    """As if their power were cut; they come back and join again."""
    chance = random.Random(4)

    def harm() -> int:
        dying = chance.choice(farm.machines[1:])
        dying.kill()
        assert not await_none(dying.processes), "nothing of it is left"
        farm.rejoin(dying).await_line("joined the farm", dying.starts + 1)
        return 1

    report(**afflicted(farm, models.cnn(tmp_path / "cnn.onnx"), TIMES, 20.0, harm))


@pytest.mark.timeout(7200)
def test_machines_cut_off(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, report: Report
) -> None:
    """For seconds, so that what was sent arrives late, or for so long that Ray gives them up and
    they have to join again."""
    chance = random.Random(3)
    place = tmp_path_factory.mktemp("farm")
    with farm_of(place, "first", "second", networks=True) as farm:

        def harm() -> int:
            machine = chance.choice(farm.machines[1:])
            machine.cut_off(True)
            time.sleep(chance.choice([5, 10, 15, 70]))
            machine.cut_off(False)
            return 1

        report(**afflicted(farm, models.cnn(tmp_path / "cnn.onnx"), TIMES, 5.0, harm))


@pytest.mark.parametrize("lock", ["released", "kept"])
@pytest.mark.timeout(7200)
def test_candidates_that_crash_hang_and_eat_all_memory(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report, lock: str
) -> None:
    """Up to four of them in each job, in native code that has released Python's lock or keeps it,
    until each kind was met so often."""
    monkeypatch.setenv("TUNEFARM_PLUGINS", "tests.plugins.faults")
    monkeypatch.setenv("TVM_FFI_RELEASE_GIL_BY_DEFAULT", str(int(lock == "released")))
    model = models.matmul(tmp_path / "mm.onnx")
    wanted = ("crash", "run_timeout", "out_of_memory", "wrong_result")
    kinds: Counter[str] = Counter()
    jobs = 0
    while min(kinds[kind] for kind in wanted) < TIMES:
        assert jobs < 2 * TIMES, f"not drawn: {kinds}"
        done = finish(
            start(
                *("submit", model, "--targets", "llvm", "--trials", 12, "--strategy", "random"),
                *("--retune", "--name", f"job{jobs}", "--json"),
            )
        )
        assert done.code == 0, done.err
        assert done.json["targets"]["llvm"]["parity"]["passed"]
        assert set(done.json["targets"]["llvm"]["failures"]) <= set(wanted), "told as what it is"
        kinds.update(done.json["targets"]["llvm"]["failures"])
        jobs += 1
    report(jobs=jobs, **kinds)


@pytest.mark.timeout(7200)
def test_mlflow_goes_away_in_mid_job(home: Home, tmp_path: Path, report: Report) -> None:
    """Killed after the job has begun, and there again for `sync`."""
    model = models.matmul(tmp_path / "mm.onnx")
    server = MlflowServer(tmp_path)
    job = ("submit", model, "--targets", "llvm", "--trials", 12, "--tracking-uri", server.uri)
    try:
        for number in range(TIMES):
            server.start()
            process = start(*job, "--retune", "--name", f"job{number}", "--json")
            while _measured(home, f"job{number}") < 2:
                assert process.poll() is None, process.communicate()
                time.sleep(0.1)
            server.kill()
            done = finish(process)
            assert done.code == 0, done.err
        server.start()
        synced = finish(start("sync", "--json"))
        assert synced.code == 0, synced.err
        assert len(synced.json["jobs"]) == TIMES
        assert not any(synced.json["jobs"].values()), "MLflow has all of them"
    finally:
        server.kill()
    report(jobs=TIMES)


def _measured(home: Home, name: str) -> int:
    journal = Journal(home)
    jobs = [job for job in journal.jobs() if job.name == name]
    count = journal.counts(jobs[0].id)["measured"] if jobs else 0
    journal.close()
    return count


@pytest.mark.timeout(7200)
def test_the_head_is_killed(tmp_path_factory: pytest.TempPathFactory, report: Report) -> None:
    """And comes back at the same address: the machines join again, the job is resumed."""
    times, place = 3, tmp_path_factory.mktemp("farm")
    found: Counter[str] = Counter()
    with farm_of(place, "first", "second") as farm:
        model = models.cnn(place / "cnn.onnx")
        for number in range(times):
            name = f"job{number}"
            sent = farm.submit(model, "--trials", 120, "--retune", "--name", name, "--detach")
            job = finish(sent).json["job"]
            while _measured(farm.head.home, name) < 20:
                time.sleep(0.2)
            before = _measured(farm.head.home, name)
            farm.head.kill()
            for machine in farm.machines[1:]:
                # Ray takes nodes beside it for a head, as long as they try to reach one.
                machine.await_line("lost the farm", number + 1)
            farm.start_head()
            for machine in farm.machines[1:]:
                machine.await_line("joined the farm", number + 2)
            done = finish(start("resume", job, "--json", **farm.environment()), 900)
            found.update(finished(farm, done))
            assert _measured(farm.head.home, name) >= max(before, 120)
    report(faults=times, **found)
