"""Units that are reached by file: a device in a laboratory without a network, a CI runner, a board.

What the state machine gives out to them is gathered into bundles (`measure.bundles`) in a
directory; whoever carries them to the device brings reports back. A bundle holds at most as many
measurements as there are units here, so that one journey answers many questions. What is out, and
what has come back, is known to a later life of the job too: its questions are told by what they
ask.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tunefarm.devices.device import Device
from tunefarm.devices.target import Target
from tunefarm.errors import (
    ArtifactError,
    ArtifactTampered,
    Failure,
    JobFailed,
    NoDevice,
    StoreError,
    UnknownJob,
)
from tunefarm.home import Home, write_atomically
from tunefarm.measure.bundles.bundle import Report, read_report, report_of, write_bundle
from tunefarm.measure.bundles.runtime_files import runtime_files
from tunefarm.measure.facts import Block, Checked, Compared, Raced, ScreenOutcome
from tunefarm.measure.files import makes, needs
from tunefarm.measure.requests import (
    CheckRequest,
    ModelRequest,
    PlaceRequest,
    RaceRequest,
    ScreenRequest,
)
from tunefarm.measure.wire import canonical, fits
from tunefarm.scheduler.crew import Answered, Heard, Raised
from tunefarm.scheduler.messages import Assignment, Joined, Screen
from tunefarm.scheduler.shipping import Depot

SIZE = 48
"""Measurements that a bundle holds at most, where nobody says: of few the search learns soon, of
many somebody carries few bundles."""
_COPYING_S = 10.0
"""For which a file that cannot be read is taken for one that is being copied."""
WHEELS = "wheels"
"""Below the exchange's directory, for Pythons of other versions: see `runtime_files`."""
_POLL_S = 0.5
_SLOT = "#"


def device_of(unit: str) -> str:
    """The device that a unit stands for: of those reached by file, there are many of one."""
    return unit.partition(_SLOT)[0]


@dataclass(frozen=True)
class _Out:
    """A bundle that is on its way, as it is on record in the job's directory.

    Attributes:
        bundle: its id.
        directory, file: where it was put.
        keys: its questions by number; `kinds`: the requests' types.
        makes: files that they may make.
        device: fingerprint of the kind that is to run it; empty on records of an older tunefarm.
    """

    bundle: str
    directory: str
    file: str
    keys: list[str]
    kinds: list[str]
    makes: list[str]
    device: str = ""

    @property
    def path(self) -> Path:
        return Path(self.directory) / self.file

    @property
    def is_lost(self) -> bool:
        """Whether it is where it was put no more; its report counts all the same."""
        return not self.path.exists() and not report_of(self.path).exists()


@dataclass(frozen=True)
class ByFile:
    """How a job's device is reached: bundles and reports lie in `directory`, `size` measurements in
    a bundle at most."""

    directory: Path
    size: int = SIZE


def _read(record: Path) -> _Out:
    return _Out(**json.loads(record.read_text()))


@dataclass
class Exchange:
    """A part of a crew, see `crew.Crew`.

    Args:
        directory: for bundles and reports.
        root: the job's directory.
        runtime: what a bundle carries so that it can be run with Python and NumPy alone.
        say: tells people.
    """

    directory: Path
    root: Path
    target: Target
    device: Device
    say: Callable[[str], None]
    runtime: Mapping[str, Path] = field(default_factory=dict)
    size: int = SIZE
    _asked: dict[str, tuple[Assignment, Any]] = field(default_factory=dict)
    """By key, questions that nobody has answered yet."""
    _due: list[str] = field(default_factory=list)
    """Of these, what is in no bundle."""
    _out: list[_Out] = field(default_factory=list)
    _lost: set[str] = field(default_factory=set)
    """Ids of those that had gone when this life began; one that is carried about now comes back."""
    _known: dict[str, Any] = field(default_factory=dict)
    """Answers that came before they were asked for, in this life."""
    _news: list[Heard] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._depot = Depot(self.root, lambda content: content)
        self._news = [Joined(f"{self.device.id}{_SLOT}{n}") for n in range(self.size)]
        self._out = [_read(record) for record in sorted(self._records.glob("*.json"))]
        self._lost = {one.bundle for one in self._out if one.is_lost}

    @property
    def _records(self) -> Path:
        return self.root / "exchange" / _label(self.target)

    def give(self, assignment: Assignment, request: Any) -> None:
        key = self._key(request)
        self._asked[key] = (assignment, request)
        if key in self._known:
            self._news += self._answered(key, self._known.pop(key), None)
        elif not any(key in one.keys for one in self._out if one.bundle not in self._lost):
            self._due.append(key)

    def _key(self, request: Any) -> str:
        """What is asked: of a screening, how fast others were is no part of it."""
        if isinstance(request, ScreenRequest):
            request = replace(request, incumbent_s=None)
        return hashlib.sha256(canonical(request, self.root).encode()).hexdigest()

    def hear(self, more: bool) -> list[Heard]:
        """What has come back. A bundle goes out when it is full, or when no `more` is on its way to
        it: nothing is being proposed or built."""
        for one in list(self._out):
            self._look_for(one)
        if self._due and (not more or len(self._asked) >= self.size):
            self._send()
        heard, self._news = self._news, []
        return heard

    def _send(self) -> None:
        if not self.directory.is_dir():
            raise StoreError(
                f"{self.directory} is not there, where bundles are put",
                hint="Mount it, or make it, and go on: tunefarm resume",
            )
        keys, self._due = self._due, []
        requests = [self._asked[key][1] for key in keys]
        files = [file for one in requests for file in needs(one) if file.exists()]
        number = 1 + len(list(self._records.glob("*.json")))
        name = f"{self.root.name}-{_label(self.target)}-{number:04d}.bundle"
        path = self.directory / name
        bundle = write_bundle(
            path,
            self.root.name,
            self.target,
            self.device.fingerprint,
            requests,
            self.root,
            files,
            self.runtime,
            about={"sku": self.device.sku, "number": number},
        )
        made = [file for one in requests for file in makes(one, None)]
        out = _Out(
            bundle.id,
            str(self.directory),
            name,
            keys,
            [type(one).__name__ for one in requests],
            sorted({file.relative_to(self.root).as_posix() for file in made}),
            self.device.fingerprint,
        )
        record = json.dumps(dataclasses.asdict(out)).encode()
        write_atomically(self._records / f"{number:04d}.json", record)
        self._out.append(out)
        self.say(f"{len(keys)} measurements are in {path}")
        self.say(f"waiting for {report_of(path).name}; run there: python {name}")

    def _look_for(self, one: _Out) -> None:
        path = report_of(one.path)
        if not path.exists():
            return
        try:
            report = _when_it_is_there(path, self.root)
            if report is None:
                return
            mine = dataclasses.replace(one, device=self.device.fingerprint)
            if refused := _refusal(mine, report):
                raise ArtifactTampered(refused)
        except ArtifactError as error:
            path.rename(path.with_suffix(".refused"))
            self.say(f"{path.name} is refused: {error.message}")
            return
        self._out.remove(one)
        self._depot.receive(report.files)
        for number, key in enumerate(one.keys):
            if number not in report.answers:
                if key in self._asked and key not in self._due:
                    self._due.append(key)  # for the next one
            elif key in self._asked:
                block = report.blocks.get(number)
                self._news += self._answered(key, report.answers[number], block)
            else:
                self._known[key] = report.answers[number]
        self.say(f"{path.name}: {len(report.answers)} of {len(one.keys)} measured")
        one.path.unlink(missing_ok=True)  # the report is the evidence

    def _answered(self, key: str, answer: Any, block: Block | None) -> list[Answered | Raised]:
        assignment, _ = self._asked.pop(key)
        if key in self._due:
            self._due.remove(key)  # it was asked again, and the first report has come after all
        if isinstance(assignment.instruction, Screen):
            if isinstance(answer, Failure):  # its process fell, whatever it had in hand
                answer = ScreenOutcome(None, answer)
            return [Answered(assignment.lease, (answer, block))]
        if isinstance(answer, Failure):
            error = JobFailed(f"{self.device.sku}: {answer.message}")
            return [Raised(assignment.lease, error)]
        return [Answered(assignment.lease, answer)]


def _refusal(one: _Out, report: Report) -> str:
    """Why a report is none to this bundle."""
    if report.bundle != one.bundle:
        return "it answers another bundle"
    if one.device and report.device.fingerprint != one.device:
        return f"it is of {report.device.sku}, of another kind than its job's device"
    if strange := set(report.files) - set(one.makes):
        return f"nobody has asked for {min(strange)}"
    for number, answer in report.answers.items():
        if not 0 <= number < len(one.keys) or not is_answer(one.kinds[number], answer):
            return f"its answer {number} is none"
    return ""


_ANSWERS: dict[str, Any] = {
    ScreenRequest.__name__: ScreenOutcome,
    RaceRequest.__name__: Raced,
    ModelRequest.__name__: Compared,
    PlaceRequest.__name__: tuple[dict[str, tuple[float, ...]], ...],
    CheckRequest.__name__: Checked,
}
"""What each request is answered with, as it comes off the wire; or with a failure."""


def is_answer(kind: str, answer: Any) -> bool:
    """Whether a request of this `kind` can be answered so."""
    if isinstance(answer, Failure):
        return True
    if isinstance(answer, ScreenOutcome) and (answer.screening is None) == (answer.failure is None):
        return False
    return fits(answer, _ANSWERS[kind])


def _when_it_is_there(path: Path, root: Path) -> Report | None:
    """The report at `path`; None while it may still be on its way.

    Raises:
        ArtifactError: it is none.
    """
    try:
        return read_report(path, root)
    except ArtifactError:
        if time.time() - path.stat().st_mtime < _COPYING_S:
            return None
        raise


def await_device(directory: Path, target: Target, say: Callable[[str], None]) -> Device:
    """The device that `directory` leads to: described by the report on a bundle without
    measurements, which is waited for.

    Raises:
        NoDevice: it is not what `target` names.
        ArtifactError: the report is none.
    """
    path = directory / f"probe-{_label(target)}.bundle"
    report = report_of(path)
    if not report.exists():
        runtime = runtime_files(directory / WHEELS, target.kind == "cuda")
        write_bundle(path, "probe", target, "", (), directory, (), runtime)
        say(f"which device is it? Run there: python {path.name}")
        say(f"waiting for {report}")
    read = None
    while read is None:
        if report.exists():
            read = _when_it_is_there(report, directory)
        if read is None:
            time.sleep(_POLL_S)
    found = read.device
    path.unlink(missing_ok=True)
    if not target.admits(found.target):
        raise NoDevice(
            f"{report} is of {found.sku}, {found.target.text}; that is not {target.text}",
            hint="Name what is there, or remove the report and run the bundle elsewhere.",
        )
    return found


def _label(target: Target) -> str:
    """For people, and another one for every target."""
    words = str(target.get("arch") or target.get("mcpu") or target.kind)
    digest = hashlib.sha256(target.text.encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', words)}-{digest}"


def waiting_for(root: Path) -> list[Path]:
    """The bundles of the job at `root` that have no report yet."""
    paths = [_read(record).path for record in sorted(root.glob("exchange/*/*.json"))]
    return [one for one in paths if one.exists() and not report_of(one).exists()]


def accept(home: Home, report: Path) -> tuple[str, int]:
    """Put `report` where the job that asked for it looks.

    Returns:
        The job, and how many answers there are.

    Raises:
        ArtifactError: it is no sound report, its job would refuse it, or one with as many answers
            lies there.
        UnknownJob: no job of this home has asked for it.
    """
    found = read_report(report, home.root)
    for record in sorted(home.jobs.glob("*/exchange/*/*.json")):
        one = _read(record)
        if one.bundle == found.bundle:
            if refused := _refusal(one, found):
                raise ArtifactTampered(f"{report}: {refused}")
            place = report_of(one.path)
            if place.resolve() != report.resolve():
                _refuse_less(found, place, home.root)
                write_atomically(place, report.read_bytes())
            return record.parents[2].name, len(found.answers)
    raise UnknownJob(
        f"no job of this farm home has asked for {report}",
        hint=f"Is it another home's? This one is {home.root}.",
    )


def _refuse_less(found: Report, place: Path, root: Path) -> None:
    """
    Raises:
        ArtifactError: another report at `place` has as many answers, or more: it is evidence.
    """
    with contextlib.suppress(ArtifactTampered, FileNotFoundError):
        there = read_report(place, root)
        if there != found and len(there.answers) >= len(found.answers):
            raise ArtifactError(
                f"{place} has {len(there.answers)} answers, this report {len(found.answers)}",
                hint="Move it away first, if this is the better one.",
            )
