"""Driving a job from its record to its artifacts; the job's single writer."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from tunefarm.devices import cpu
from tunefarm.devices.lock import DeviceLock
from tunefarm.devices.registry import local_devices
from tunefarm.devices.roof import Roof
from tunefarm.devices.standing import Use, check_free, standing
from tunefarm.errors import (
    Cancelled,
    FarmUnreachable,
    Fenced,
    Interrupted,
    JobError,
    JobFailed,
    NoDevice,
    StoreError,
    TunefarmError,
)
from tunefarm.frontend.importer import Importing, ImportRequest
from tunefarm.frontend.program import Program
from tunefarm.home import Home
from tunefarm.measure.code import CODE, code_of
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.roofline import known_roof, measure_roof, roof_path
from tunefarm.results.artifact import Packaged
from tunefarm.results.driver_lock import DriverLock
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.results.record import refuse_withdrawn
from tunefarm.scheduler import actors, farm, learning
from tunefarm.scheduler.deadline import Budget
from tunefarm.scheduler.exchange import SIZE, ByFile
from tunefarm.scheduler.layout_trial import LayoutTrial
from tunefarm.scheduler.pace import paced
from tunefarm.scheduler.progress import Reporter, Snapshot
from tunefarm.scheduler.ray_processes import end_own_ray
from tunefarm.scheduler.state import Limits
from tunefarm.scheduler.target_run import TargetRun
from tunefarm.scheduler.unmeasured import UnmeasuredRun

TRACKER_LIMIT_S = 180.0
QUIET_LIMIT_S = 30.0
DEFAULT_TRIALS = 1000


@dataclass(frozen=True)
class JobResult:
    job: str
    status: str
    targets: dict[str, Packaged]
    tracking: str
    """Empty when MLflow has everything, else why not (yet)."""


class StopFlag:
    """Set by a signal handler; looked at between events."""

    def __init__(self) -> None:
        self.requested = False

    def set(self, *_: Any) -> None:
        if self.requested:  # asked twice: at once
            raise KeyboardInterrupt
        self.requested = True

    def install(self) -> None:
        """Let Ctrl-C and SIGTERM set the flag (Ray puts its own handler in the latter's place)."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.set)

    def uninstall(self) -> None:
        """From here on Ctrl-C and SIGTERM end the process."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def drive(home: Home, job_id: str, reporter: Reporter, stop: StopFlag) -> JobResult:
    """Run or resume a job to its end.

    Raises:
        Interrupted: the stop flag was set; the job can be resumed.
        Cancelled: `tunefarm cancel`.
        TunefarmError: see `errors`; the job has failed.
    """
    journal = Journal(home)
    job = journal.job(job_id)
    lock = DriverLock(home, job.id)
    if not lock.acquire():
        raise JobError(
            f"job {job.id} is being driven by another process",
            hint=f"Watch it: tunefarm watch {job.id}",
        )
    driver = _Driver(home, journal, job, reporter, stop)
    try:
        if mended := journal.mend() or journal.mended:
            reporter.line(mended.words())
        return driver.run()
    except (Interrupted, KeyboardInterrupt):
        journal.add_event(job.id, "interrupted")
        raise Interrupted(
            f"job {job.id} is interrupted", hint=f"Go on with: tunefarm resume {job.id}"
        ) from None
    except Cancelled:
        journal.add_event(job.id, "cancelled")
        driver.tell_tracker()
        raise
    except (StoreError, Fenced):
        with contextlib.suppress(StoreError, Fenced):  # its record is what is in trouble
            journal.add_event(job.id, "interrupted")
        raise
    except TunefarmError as error:
        journal.add_event(job.id, "failed", error=str(error), exit_code=error.exit_code)
        driver.tell_tracker()
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        journal.add_event(job.id, "failed", error=text, exit_code=JobFailed.exit_code)
        driver.tell_tracker()
        raise JobFailed(
            f"job {job.id} has failed: {text.splitlines()[0][:300]}",
            hint=f"This is a fault of tunefarm's; the log has more: tunefarm logs {job.id}",
        ) from error
    finally:
        driver.close()
        lock.release()
        journal.close()


_ENDS_ALL = (Interrupted, Cancelled, Fenced, StoreError, FarmUnreachable)
"""Whatever else a target ends with is its own: the job's other targets go on."""


def of_several(failed: dict[str, TunefarmError], done: dict[str, Packaged]) -> TunefarmError:
    """How a job ends some of whose targets have failed."""
    first = next(iter(failed.values()))
    said = "; ".join(f"{target}: {error.message}" for target, error in failed.items())
    hint = " ".join(error.hint for error in failed.values() if error.hint)
    if done:
        where = ", ".join(f"{target}: {packaged.path}" for target, packaged in done.items())
        hint = f"{hint} Packaged all the same: {where}".strip()
    return type(first)(said, hint=hint)


class _Driver:
    def __init__(
        self, home: Home, journal: Journal, job: Job, reporter: Reporter, stop: StopFlag
    ) -> None:
        self.home, self.journal, self.job = home, journal, job
        self.reporter, self.stop = reporter, stop
        self.options = job.options
        self.farm: dict[str, str] | None = job.options.get("farm")
        exchange = job.options.get("exchange")
        size = job.options.get("per_bundle") or SIZE
        self.exchange = ByFile(Path(exchange), size) if exchange else None
        self.measures_here = self.farm is None and self.exchange is None
        self.locks: list[DeviceLock] = []
        self.devices: list[str] = []
        self.is_told = False
        """Whether MLflow is told of this job's end: not of one whose model cannot be imported."""
        self.pending_sync: Any = None
        self.last_check = 0.0
        self.started = time.monotonic()
        self.spent_s = 0.0
        self.epoch = 0

    def run(self) -> JobResult:
        targets = self.journal.targets(self.job.id)
        measured = [t for t in targets if not t.device.is_none]
        self._check_code(targets)
        if self.measures_here:
            self._check_devices(measured)
        refuse_withdrawn(self.journal, self.job.id)
        if self.journal.status(self.job.id) != "queued":  # whoever watches sees it go on
            self.journal.add_event(self.job.id, "queued")
        if self.measures_here:  # on a farm, units are taken where they are
            self._take_devices(measured)
        self.epoch = self.journal.drive(self.job.id)
        self.spent_s = self.journal.spent_s(self.job.id)
        self.started = time.monotonic()
        self.journal.add_event(self.job.id, "running", pid=os.getpid(), epoch=self.epoch)
        self._show("import")
        devices = {t.device.id for t in measured} if self.measures_here else set()
        cores = max([t.device.cores for t in measured if devices] or [cpu.usable_cores()])
        # The first import runs while Ray starts: both take seconds, neither needs the other.
        importing = Importing(self._import_request(targets[0]))
        try:
            # A file that is no model is found out in a moment: before Ray is troubled.
            if importing.wait(1.0):
                importing.result()
            if self.farm is None:
                farm.start_local(2 * cores + 4, devices, cores)
            else:
                farm.connect(self.farm["address"], Path(self.farm["token"]))
            if threading.current_thread() is threading.main_thread():
                self.stop.install()
            while not importing.wait(0.5):
                self.check()
            program = importing.result()
        finally:
            importing.close()
        self.is_told = True
        done: dict[str, Packaged] = {}
        failed: dict[str, TunefarmError] = {}
        packaged = {row["target"]: row for row in self.journal.artifacts(self.job.id)}
        for index, target in enumerate(targets):
            if target.name in packaged:  # in an earlier life of this job
                row = packaged[target.name]
                done[target.name] = Packaged(Path(row["path"]), row["digest"], row["summary"])
                continue
            try:
                if index:
                    program = self._imported(self._import_request(target))
                done[target.name] = self._run_target(target, program, len(targets) - index)
            except _ENDS_ALL:
                raise
            except TunefarmError as error:
                if len(targets) == 1:
                    raise
                failed[target.name] = error
                self.reporter.line(f"{target.name}: {error}")
        if failed:
            raise of_several(failed, done)
        self.journal.add_event(self.job.id, "succeeded")
        self._show("track")
        return JobResult(self.job.id, "succeeded", done, self._finish_tracking())

    def _take_devices(self, targets: list[JobTarget]) -> None:
        """One job at a time per device; who waits is told for whom. All jobs take them in the same
        order, so that no two wait for each other."""
        for _, device in sorted({t.device.id: t.device for t in targets}.items()):
            check_free(self.home, device.id)
            self.devices.append(device.id)
            lock = DeviceLock(device)
            lock.wait(
                {"job": self.job.id, "name": self.job.name},
                functools.partial(self._is_busy, device.id),
                self.check,
            )
            self.locks.append(lock)
            check_free(self.home, device.id)  # it may have been drained meanwhile

    def _is_busy(self, device: str, job: str) -> None:
        self.reporter.line(f"device {device} is busy with job {job}; this job is queued behind it")

    def _check_devices(self, targets: list[JobTarget]) -> None:
        """A resumed job must be where it was: same machine, same tools."""
        here = {d.id: d for d in local_devices(self.home)}
        for target in targets:
            found = here.get(target.device.id)
            if found is None or found.toolchain != target.device.toolchain:
                raise NoDevice(
                    f"job {self.job.id} was measured on {target.device.id} with "
                    f"{target.toolchain}; that is not what is here now",
                    hint="Resume it where it ran, or submit the model anew.",
                )

    def _check_code(self, targets: list[JobTarget]) -> None:
        """What it has measured must be of the kernels that its traces stand for here."""
        for target in targets:
            here = f"{CODE}{code_of(target.resolved.kind)}"
            noted = [one for one in target.toolchain.split() if one.startswith(CODE)]
            if noted not in ([], [here]):
                raise JobError(
                    f"job {self.job.id} has kernels for {target.name} that this tunefarm "
                    f"would make otherwise ({noted[0]} is not {here})",
                    hint="Resume it with the one that began it, or submit the model anew.",
                )
            if self.farm is None:
                actors.check_compiler(target.toolchain)

    def _directory(self, target: JobTarget) -> Path:
        return self.home.job_dir(self.job.id) / target.name.replace("/", "-")

    def _import_request(self, target: JobTarget, other: str | None = None) -> ImportRequest:
        """Of the program, or of the one in the `other` layout."""
        return ImportRequest(
            Path(self.options["model"]),
            self._directory(target) / (f"program-{other}" if other else "program"),
            target.resolved,
            self.job.model_digest,
            tuple((name, tuple(shape)) for name, shape in self.options["shapes"]),
            other or self.options.get("layout"),
        )

    def _in_faster_layout(self, target: JobTarget, program: Program, protocol: Protocol) -> Program:
        """`program`, or the same in its other layout, where that is measured to be faster."""
        other = program.evidence.get("other_layout")
        if not other:
            return program
        request = self._import_request(target, other)
        trial = LayoutTrial(
            self.journal,
            self.job,
            target,
            protocol,
            self._directory(target),
            roof_path(self.home, target.device),
            self.check,
        )
        chosen = trial.decided()
        if chosen is None:
            self._show("layout")
            self.quiet()
            chosen, why = trial.decide(program, lambda: self._imported(request))
            self.reporter.line(f"{target.name}: {why}")
        if chosen == other:
            return self._imported(request)
        shutil.rmtree(request.directory, ignore_errors=True)
        return program

    def _imported(self, request: ImportRequest) -> Program:
        """An import that can be interrupted."""
        importing = Importing(request)
        try:
            while not importing.wait(0.5):
                self.check()
            return importing.result()
        finally:
            importing.close()

    def _budget(self, targets_left: int) -> Budget | None:
        """One target's; None where there is no limit."""
        whole: float | None = self.options["budget_s"]
        if not whole:
            return None
        spent = self.spent_s + time.monotonic() - self.started
        targets = self.journal.targets(self.job.id)
        return Budget(whole / len(targets), max(0.0, whole - spent) / targets_left)

    def _build_only(self, target: JobTarget, program: Program, targets_left: int) -> Packaged:
        self.sync()
        transfer, _ = learning.begin(self.home, self.job)
        self._show("build")
        return UnmeasuredRun(
            self.home,
            self.journal,
            self.job,
            target,
            program,
            Protocol(**self.job.protocol),
            self._directory(target),
            transfer,
            None if (budget := self._budget(targets_left)) is None else budget.left_s,
            self.check,
            lambda text: self.reporter.line(f"{target.name}: {text}"),
        ).run()

    def _run_target(self, target: JobTarget, program: Program, targets_left: int) -> Packaged:
        if target.device.is_none:
            return self._build_only(target, program, targets_left)
        protocol = Protocol(**self.job.protocol)
        here = target.device.host == cpu.host_name()
        pace = paced(
            target.device,
            by_file=self.exchange is not None,
            beside=self.farm is None or farm.builders_beside(target.device),
            cores_here=cpu.usable_cores(),
        )
        limits = Limits(
            trials=self.options["trials"] or DEFAULT_TRIALS,
            builders=pace.builders,
            batch=pace.batch,
            shared_processor=pace.takes_turns,
            enough=self.options.get("enough"),
            processes=(
                protocol.race_processes,
                protocol.place_processes,
                protocol.final_processes,
                protocol.model_processes,
            ),
        )
        # Measured on this machine, if at all: a farm's other ones have their own to do.
        on_processor = target.resolved.kind == "llvm"
        roof = self._roof(target) if here and on_processor and self.exchange is None else None
        if self.measures_here:
            program = self._in_faster_layout(target, program, protocol)
        self.sync()  # while the first kernels are built: what is timed before need not wait for it
        transfer, note = learning.begin(self.home, self.job)
        if note:
            self.reporter.line(f"{target.name}: {note}")
        run = TargetRun(
            self.home,
            self.journal,
            self.job,
            target,
            program,
            limits,
            self.epoch,
            protocol,
            self.reporter,
            self._budget(targets_left),
            self.check,
            self.sync,
            self.quiet,
            self.waited,
            self.farm is not None,
            self.exchange,
            transfer,
            roof,
        )
        try:
            return run.run()
        finally:
            run.close()

    def _roof(self, target: JobTarget) -> Roof | None:
        """Of this machine; measured once, by the first job on it."""
        roof = known_roof(self.home, target.device)
        if roof is None:
            self._show("roof")
            self.quiet()
            try:
                roof = measure_roof(self.home, target.device)
            except (JobError, OSError) as error:  # without it kernels stop later
                self.reporter.line(f"{target.name}: no roof: {error}")
                return None
            self.reporter.line(f"{target.name}: {roof.words()}")
        return roof

    def check(self) -> None:
        """Between events: has somebody asked to stop?"""
        if self.stop.requested:
            raise Interrupted("interrupted")
        if time.monotonic() - self.last_check > 2.0:
            self.last_check = time.monotonic()
            if self.journal.cancel_requested(self.job.id):
                raise Cancelled(f"job {self.job.id} was cancelled")
            for device in self.devices:
                found = standing(self.home, device)
                if found.use is Use.QUARANTINED:
                    self.reporter.line(f"device {device} is {found.words()}")
                    raise Interrupted("its device may not be used")

    @functools.cached_property
    def tracker(self) -> Any:
        """Begun when it is first asked: importing MLflow takes seconds on a core."""
        return actors.spawn(
            actors.Tracker,
            self.home,
            self.journal.url,
            self.options["tracking_uri"],
            cpus=0,
            node=farm.this_node(),
        )

    def sync(self) -> None:
        """Ask the tracker to catch up, without waiting; at most one request at a time."""
        if self.pending_sync is not None:
            ready, _ = ray.wait([self.pending_sync], timeout=0)
            if not ready:
                return
        self.pending_sync = self.tracker.sync.remote(self.job.id)

    def waited(self, seconds: float) -> None:
        """For a turn on a device: that is not on the job's budget."""
        self.started += seconds

    def quiet(self) -> None:
        """Wait for a running sync: what is timed next must not be timed with it."""
        if self.pending_sync is not None:
            ray.wait([self.pending_sync], timeout=QUIET_LIMIT_S)
            self.pending_sync = None

    def _finish_tracking(self) -> str:
        self.quiet()
        try:
            return str(ray.get(self.tracker.sync.remote(self.job.id), timeout=TRACKER_LIMIT_S))
        except (ray.exceptions.RayError, TimeoutError) as error:
            return f"MLflow could not be written: {str(error).splitlines()[0]}"

    def tell_tracker(self) -> None:
        """Let MLflow know of an end that is no success."""
        if self.is_told:
            self._finish_tracking()

    def _show(self, phase: str) -> None:
        elapsed = time.monotonic() - self.started
        self.reporter.update(Snapshot(self.job.id, "", phase, elapsed_s=elapsed))

    def close(self) -> None:
        if ray.is_initialized() and self.farm is None:  # a farm's goes on: see `cli.submit`
            end_own_ray()
        for lock in self.locks:
            lock.release()
