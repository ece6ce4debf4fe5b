"""The Ray actors: search, build, measure and tracking workers, warm and long-lived."""

from __future__ import annotations

import contextlib
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunefarm.costmodel.ranker import Ranker
from tunefarm.costmodel.transfer import Transfer, load_transfer
from tunefarm.devices import cpu
from tunefarm.devices.device import Device
from tunefarm.devices.lock import DeviceLock
from tunefarm.devices.target import Target
from tunefarm.errors import JobError, StoreError, TunefarmError
from tunefarm.frontend.program import workload_path
from tunefarm.home import Home
from tunefarm.measure.assemble import AssembleRequest, assemble
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.code import whole_code
from tunefarm.measure.cuda.compiler import COMPILER, COMPILERS, cuda_compiler
from tunefarm.measure.cuda.on_paper import OnPaper, PaperRequest, check_on_paper
from tunefarm.measure.expected import ExpectedRequest, make_expected
from tunefarm.measure.facts import Block
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import (
    CheckRequest,
    ModelRequest,
    PlaceRequest,
    RaceRequest,
    ScreenRequest,
)
from tunefarm.measure.roofline import roof_path
from tunefarm.measure.runner import Runner
from tunefarm.scheduler.shipping import Parcels, Site
from tunefarm.search.candidate import Candidate
from tunefarm.search.plugins import load_plugins
from tunefarm.search.proposer import Proposer, Result, Taught, likeliest

EMPTY: Mapping[str, Any] = MappingProxyType({})
LOCK_EVERY_S = 0.5
"""Between two looks whether a device is free."""


@dataclass(frozen=True)
class SearchPlan:
    """What a search worker needs to know of its job and target."""

    program: Path
    target: Target
    toolchain: str
    strategy: str
    seed: int
    transfer: Path | None = None
    """The cost model to start from."""


class Pulsed:
    """Says that it lives, whatever else it does: one that is frozen, or whose native code keeps
    Python's lock, does not."""

    @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
    def pulse(self) -> None:
        """Answered by a thread of its own."""


class SearchWorker(Pulsed):
    """Holds spaces, strategies and the ranking of one target's kernels."""

    def __init__(self, plan: SearchPlan) -> None:
        load_plugins()
        self._plan = plan
        self._transfer = _transfer(plan.transfer)
        prior = self._transfer.ranking if self._transfer else None
        self._ranker = Ranker(seed=plan.seed, prior=prior)
        self._proposers: dict[str, Proposer] = {}
        self._earlier: dict[str, list[Candidate]] = defaultdict(list)

    def recall(self, candidates: Collection[Candidate]) -> None:
        """What was proposed before this worker lived; call it first, if only to warm it up."""
        import tunefarm.search.spaces.generic  # noqa: F401 - the compiler's import is the warm-up

        for candidate in candidates:
            self._earlier[candidate.task].append(candidate)

    def propose(
        self, task: str, count: int, in_flight: Collection[str], news: Collection[Result]
    ) -> tuple[Candidate, ...]:
        """Candidates for `task`, after learning from the results since the last call."""
        self._observe(news)
        return self._proposer(task).propose(count, in_flight)

    def likeliest(self, task: str, count: int) -> tuple[str, ...]:
        """Traces of the points of which the hardware model, corrected by what was learnt, expects
        most, best first; none for a kernel that no model knows, or whose space fails."""
        from tunefarm.search.replay import load_workload
        from tunefarm.search.spaces import design_space

        workload = load_workload(workload_path(self._plan.program, task))
        try:
            space = design_space(workload, self._plan.target, self._transfer)
        except Exception:  # TVM raises many types; the kernel stays untuned
            return ()
        return likeliest(space, count, self._plan.seed)

    def taught(self, news: Collection[Result]) -> list[Taught]:
        """What a cost model can learn from this search's candidates."""
        self._observe(news)
        return [one for proposer in self._proposers.values() for one in proposer.taught()]

    def _observe(self, news: Collection[Result]) -> None:
        for name in {r.candidate.task for r in news}:
            self._proposer(name).observe([r for r in news if r.candidate.task == name])

    def _proposer(self, task: str) -> Proposer:
        if task not in self._proposers:
            from tunefarm.search.replay import load_workload
            from tunefarm.search.spaces import design_space

            plan = self._plan
            workload = load_workload(workload_path(plan.program, task))
            self._proposers[task] = Proposer(
                task,
                plan.target,
                plan.toolchain,
                design_space(workload, plan.target, self._transfer),
                plan.strategy,
                self._ranker,
                seed=plan.seed,
                earlier=self._earlier[task],
            )
        return self._proposers[task]


def _transfer(path: Path | None) -> Transfer | None:
    """The model at `path`; a search goes on without one that cannot be loaded."""
    try:
        return load_transfer(path) if path is not None else None
    except StoreError:
        return None


def check_compiler(toolchain: str) -> None:
    """That CUDA is compiled here, in this process's environment, by what a job's `toolchain` names.

    Raises:
        JobError: it is by something else.
        UnsupportedTarget: by nothing.
    """
    wanted = [one for one in toolchain.split() if one.partition("-")[0] in COMPILERS]
    if wanted and (here := cuda_compiler()) not in wanted:
        raise JobError(
            f"{platform.node()} compiles CUDA with {here}, the job with {wanted[0]}",
            hint=f"Set {COMPILER} to have the other one, if that is there; or submit anew.",
        )


@dataclass(frozen=True)
class Away:
    """A worker's job is not on its machine: its directory is at `driver` where the driver is.

    Attributes:
        code: of the driver's tunefarm (`measure.code.whole_code`).
        toolchain: of the job's target.
    """

    driver: Path
    code: str
    toolchain: str

    def check(self, builds: bool) -> None:
        """Of the worker's own process, for its machine may have said something else before.

        Raises:
            JobError: what it makes would not be what it is taken for.
        """
        here, own = platform.node(), whole_code()
        if own != self.code:
            raise JobError(f"the tunefarm of {here} is another one ({own}, not {self.code})")
        if builds:
            check_compiler(self.toolchain)

    def site(self) -> Site:
        """To be made where the worker is."""
        root = Home.from_environment().prepare().job_dir(self.driver.name)
        return Site(root, self.driver, ray.get)


@dataclass(frozen=True)
class Made:
    """An answer, with the files that came to be where the driver does not see them."""

    answer: Any
    files: dict[str, bytes] = field(default_factory=dict)


class Worker(Pulsed):
    """What builders and measure workers have in common: requests may come from another machine."""

    def __init__(self, away: Away | None) -> None:
        self._away = away
        self._site = away.site() if away is not None else None

    def _make(self, request: Any, parcels: Parcels, act: Callable[[Any], Any]) -> Made:
        if self._site is None:
            return Made(act(request))
        here = self._site.unpack(request, parcels)
        return Made(*self._site.pack(here, act(here)))


class BuildWorker(Worker):
    """Builds candidates, and whole models, in children."""

    def __init__(self, away: Away | None, limit_s: float, toolchain: str = "") -> None:
        super().__init__(away)
        self._toolchain = toolchain
        self._builder = Builder(limit_s)
        self._builder.start()

    def ready(self) -> None:
        """
        Raises:
            JobError: see `Away.check`.
            UnsupportedTarget: nothing here compiles for the target.
        """
        check_compiler(self._toolchain)  # whoever started Ray here has an environment of its own
        if self._away is not None:
            self._away.check(builds=True)

    def build(self, request: BuildRequest, parcels: Parcels = EMPTY) -> Made:
        return self._make(request, parcels, self._builder.build)

    def assemble(
        self, request: AssembleRequest | ExpectedRequest, parcels: Parcels = EMPTY
    ) -> Made:
        """Of a whole model: its library, or what it computes."""
        of_it = make_expected if isinstance(request, ExpectedRequest) else assemble
        return self._make(request, parcels, of_it)

    def on_paper(self, request: PaperRequest) -> OnPaper:
        return check_on_paper(request)


class MeasureWorker(Worker):
    """The one user of its device.

    Args:
        gauge: file of the device's gauge (`measure.steady`); None for that in this machine's home.
        job: takes the device for this job before it is `ready`; None where the driver has taken it.
    """

    def __init__(
        self,
        away: Away | None,
        device: Device,
        protocol: Protocol,
        gauge: Path | None = None,
        job: str | None = None,
    ) -> None:
        super().__init__(away)
        kind = device.target.kind
        self._on_gpu = kind == "cuda"
        # A GPU's time is its own: nobody takes some of it away.
        gauge = None if self._on_gpu else gauge or roof_path(Home.from_environment(), device)
        self._runner = Runner(device.cores, protocol.memory_bytes, gauge, kind, device.uuid)
        self._lock, self._job = DeviceLock(device), job
        self._protocol = protocol
        self._since = protocol.canary_every
        self._last = 0.0

    def _make(self, request: Any, parcels: Parcels, act: Callable[[Any], Any]) -> Made:
        if self._job is not None:  # Ray has started it again: without its lock
            self.ready()
        return super()._make(request, parcels, act)

    def ready(self) -> None:
        """Returns once the device is this worker's, and has answered.

        Raises:
            JobError: see `Away.check`.
            DeviceLost: it does not.
        """
        if self._away is not None:
            self._away.check(builds=False)
        while self._job is not None and not self._lock.acquire({"job": self._job}):
            time.sleep(LOCK_EVERY_S)
        self._job = None
        self._runner.ready()

    def screen(self, request: ScreenRequest, parcels: Parcels = EMPTY) -> Made:
        """The outcome, and the block that it opens where a canary was due."""
        block = None
        if self._since >= self._protocol.canary_every or time.monotonic() - self._last > 60:
            canary_s = self._runner.canary()
            if canary_s is not None:
                own = self._runner.conditions() if self._on_gpu else {}
                block = Block(canary_s, {**cpu.conditions(), **own})
            self._since, self._last = 0, time.monotonic()
        self._since += 1
        return self._make(request, parcels, lambda here: (self._runner.screen(here), block))

    def race(self, request: RaceRequest, parcels: Parcels = EMPTY) -> Made:
        return self._make(request, parcels, self._runner.race)

    def place(self, request: PlaceRequest, parcels: Parcels = EMPTY) -> Made:
        return self._make(request, parcels, self._runner.place)

    def model(self, request: ModelRequest, parcels: Parcels = EMPTY) -> Made:
        return self._make(request, parcels, self._runner.model)

    def check(self, request: CheckRequest, parcels: Parcels = EMPTY) -> Made:
        return self._make(request, parcels, self._runner.check)


class Tracker:
    """Writes MLflow from the journal, away from the tuning path."""

    def __init__(self, home: Home, journal_url: str, tracking_uri: str) -> None:
        self._home = home
        self._journal_url = journal_url
        self._uri = tracking_uri

    def sync(self, job: str) -> str:
        """Empty when MLflow has everything, else why not."""
        from tunefarm.results.journal import Journal
        from tunefarm.results.tracking import sync_job

        try:
            with contextlib.closing(Journal(self._home, self._journal_url)) as journal:
                return sync_job(journal, job, self._uri)
        except TunefarmError as error:
            return str(error)


def spawn(
    worker: type,
    *args: Any,
    cpus: float = 1,
    resources: Mapping[str, float] = EMPTY,
    node: str | None = None,
    restarts: int = -1,
) -> Any:
    """An actor of `worker`, on `node` if that is named; Ray restarts it when its process dies,
    without its state. One whose state matters takes no `restarts`: its caller must make it anew."""
    options: dict[str, Any] = {"num_cpus": cpus, "max_restarts": restarts, "max_task_retries": 0}
    if issubclass(worker, Pulsed):
        options["concurrency_groups"] = {"pulse": 1}
    if resources:
        options["resources"] = dict(resources)
    if node is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(**options)(worker).remote(*args)
