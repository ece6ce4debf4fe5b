"""The workers of one job, on whichever machines offer them: a measure worker for each unit, and
builders. They come and go with their machines, with what people say of a device, and with the share
of the farm that other jobs leave (`broker`)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from tunefarm.devices.device import Device
from tunefarm.devices.registry import register
from tunefarm.devices.standing import Use, standing
from tunefarm.errors import JobFailed, TunefarmError, last_line
from tunefarm.home import Home
from tunefarm.measure.code import whole_code
from tunefarm.measure.protocol import Protocol
from tunefarm.scheduler import actors, farm
from tunefarm.scheduler.broker import Share
from tunefarm.scheduler.crew import Heard
from tunefarm.scheduler.messages import Builders, Joined, Left
from tunefarm.scheduler.pulse import Pulses

SCAN_EVERY_S = 5.0
"""Between two looks at which machines are there."""
WAITING_S = 1.0
"""The same for a job that has no unit."""
FIRST_ANSWER_S = 2.0
"""How long a machine that is new is waited for to say what it has; later is as well."""
STARTS = 3
"""How often what cannot start, or kills who starts it, is tried."""
BUILDERS = "builders"
"""The pool of those on machines that measure nothing."""


@dataclass(frozen=True)
class Plan:
    """Whom a target needs.

    Attributes:
        device: any unit is of its kind.
        job: whose directory in `home` requests are about.
        toolchain: of the target.
        start_search: makes a search worker that knows all; called again when one dies.
        gauge: of the device on this machine.
        takes: units take their devices for the job; else the driver has taken it.
        builds_beside: builders on machines with units of the job are used, for they take turns with
            them or do not disturb them; else they are left alone.
        weight: of the job, where others want the same.
        say: tells people.
        most_builders: None for as many as are offered.
    """

    home: Home
    device: Device
    job: str
    toolchain: str
    protocol: Protocol
    start_search: Callable[[], Any]
    gauge: Path
    takes: bool = False
    builds_beside: bool = True
    weight: float = 1.0
    say: Callable[[str], None] = lambda text: None
    most_builders: int | None = None

    @property
    def root(self) -> Path:
        return self.home.job_dir(self.job)

    @property
    def pool(self) -> str:
        """Of the units that any job for this kind of device could have."""
        tools = " ".join(f"{name} {version}" for name, version in self.device.toolchain)
        return f"{self.device.fingerprint} {tools}"

    def is_unit(self, device: Device) -> bool:
        mine = (self.device.fingerprint, self.device.toolchain)
        return (device.fingerprint, device.toolchain) == mine


@dataclass(eq=False)
class Worker:
    """An actor, and whether what it needs must be sent there; of a builder, which place it has."""

    actor: Any
    node: str
    is_away: bool
    place: str = ""


@dataclass
class Fleet:
    """`tend` it often: it says who came and who left."""

    plan: Plan
    devices: farm.Devices
    pulses: Pulses
    units: dict[str, Worker] = field(default_factory=dict)
    builders: list[Worker] = field(default_factory=list)
    idle: list[Worker] = field(default_factory=list)
    """Of the builders those that do nothing."""
    coming: dict[Any, str | Worker] = field(default_factory=dict)
    """Units and builders that are starting, by what they will answer."""
    joined: set[str] = field(default_factory=set)
    """Units that have arrived, those whose process Ray starts again among them."""
    has_had_a_unit: bool = False
    _scanned: float = 0.0
    _said: int = -1
    _failures: Counter[str] = field(default_factory=Counter)
    _told_of: set[str] = field(default_factory=set)
    _unfit: set[str] = field(default_factory=set)
    """Machines whose builders would make something else."""

    def __post_init__(self) -> None:
        self.here = farm.this_node()
        self.share = Share(self.plan.job, self.plan.weight, is_alone=not self.plan.takes)

    # -------------------------------------------------------------------- looking

    def tend(self, working: Collection[Worker | None], besides: Collection[Worker]) -> list[Heard]:
        """Look who is there, now and then and whenever the share has changed.

        Args:
            working: those that have something in hand.
            besides: whose pulse is to be felt as well.
        """
        every_s = SCAN_EVERY_S if self.units else WAITING_S
        if not self.share.is_news() and time.monotonic() - self._scanned < every_s:
            return []
        self._scanned = time.monotonic()
        mine, others = farm.machines()
        self._tell_of(others)
        there = {node.id: node for node in mine}
        heard = self._let_go(there, working)
        for node in there.values():
            self._take_units(node)
            self._take_builders(node)
        self._claim(there)
        self.pulses.ask([*besides, *self.builders, *self.units.values()])
        return [*heard, *self._counted()]

    def _tell_of(self, strangers: Mapping[str, str]) -> None:
        """Once of each."""
        for node, why in strangers.items():
            if node not in self._told_of:
                self._told_of.add(node)
                self.plan.say(why)

    def soon(self) -> None:
        """Look again at the next turn."""
        self._scanned = 0.0

    def _claim(self, there: Mapping[str, farm.Node]) -> None:
        units = {
            unit
            for node in there.values()
            for unit, device in self._offered(node).items()
            # A unit of ours that is drained is kept to the end.
            if self.plan.is_unit(device) and (unit in self.units or self._use(unit) is Use.FREE)
        }
        pools = {self.plan.pool: frozenset(units)}
        if self.joined:  # a job that waits for its devices keeps no builder from another
            apart = [node for node in there.values() if not node.devices]
            places = (_places(node) for node in apart if node.id not in self._unfit)
            pools[BUILDERS] = frozenset(place for one in places for place in one)
        held = {
            self.plan.pool: frozenset(self.joined),
            BUILDERS: frozenset(worker.place for worker in self.builders) - {""},
        }
        self.share.ask(pools, held)

    def _offered(self, node: farm.Node) -> Mapping[str, Device]:
        try:
            return self.devices.of(node, FIRST_ANSWER_S) if node.devices else {}
        except ray.exceptions.RayError:
            return {}  # gone since, or not ready: the next look asks again

    def _use(self, unit: str) -> Use:
        return standing(self.plan.home, unit).use

    # --------------------------------------------------------------------- taking

    def _take_units(self, node: farm.Node) -> None:
        if all(unit in self.units for unit in node.devices):
            return
        for unit, device in self._offered(node).items():
            if unit in self.units or not self.plan.is_unit(device):
                continue
            register(self.plan.home, device)  # so that people see it, and may keep it out
            if self._use(unit) is Use.FREE and self.share.may_have(self.plan.pool, unit):
                away = self._away(node.id)
                actor = actors.spawn(
                    actors.MeasureWorker,
                    away,
                    device,
                    self.plan.protocol,
                    self.plan.gauge if away is None else None,
                    self.plan.job if self.plan.takes else None,
                    cpus=0,
                    resources={f"{farm.DEVICE}{unit}": 1},
                    node=node.id,
                )
                self.units[unit] = self._worker(actor, node.id)
                self.coming[actor.ready.remote()] = unit

    def _take_builders(self, node: farm.Node) -> None:
        most = self.plan.most_builders
        mine = {worker.place for worker in self.builders if worker.node == node.id}
        for place in self._buildable(node):
            if place in mine or (most is not None and len(self.builders) >= most):
                continue
            actor = actors.spawn(
                actors.BuildWorker,
                self._away(node.id),
                self.plan.protocol.compile_limit_s,
                self.plan.toolchain,
                cpus=0,  # they are counted as builders: waiting jobs' others are to keep out no one
                resources={farm.BUILDER: 1},
                node=node.id,
            )
            worker = self._worker(actor, node.id, place)
            self.builders.append(worker)
            self.coming[actor.ready.remote()] = worker

    def _buildable(self, node: farm.Node) -> list[str]:
        """The node's places for builders that this job may have. Beside devices they are whose unit
        is there, for others would build while it measures."""
        if node.id in self._unfit:
            return []
        if not node.devices:
            return [p for p in _places(node) if self.share.may_have(BUILDERS, p)]
        is_ours = any(unit in self.units for unit in node.devices)
        return _places(node) if is_ours and self.plan.builds_beside else []

    def _away(self, node: str) -> actors.Away | None:
        if node == self.here:
            return None
        return actors.Away(self.plan.root, whole_code(), self.plan.toolchain)

    def _worker(self, actor: Any, node: str, place: str = "") -> Worker:
        return Worker(actor, node, node != self.here, place)

    def arrived(self, reference: Any) -> list[Heard]:
        """One of those that were `coming` has answered.

        Raises:
            JobFailed: no unit has ever started, and this one has been tried often enough.
        """
        who = self.coming.pop(reference)
        try:
            ray.get(reference)
        except ray.exceptions.RayError as error:
            if isinstance(who, str):
                return self._cannot_start(who, error)
            self._will_not_do(who, error)
            return []
        if isinstance(who, str):
            self.joined.add(who)
            del self._failures[who]
            if not self.has_had_a_unit:
                self.has_had_a_unit = True
                self.soon()  # for builders too
            return [Joined(who)]
        self.idle.append(who)
        return self._counted()

    def _will_not_do(self, builder: Worker, error: ray.exceptions.RayError) -> None:
        """One that says why is not asked again."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, TunefarmError) and builder.node not in self._unfit:
            self._unfit.add(builder.node)
            self.plan.say(f"a machine that could build is left alone: {cause.message}")
        self.drop_builder(builder)

    def _cannot_start(self, unit: str, error: ray.exceptions.RayError) -> list[Heard]:
        """It is tried again at the next look."""
        cause = getattr(error, "cause", None) or error
        reason = cause.message if isinstance(cause, TunefarmError) else last_line(cause)
        self._failures[unit] += 1
        if self._failures[unit].bit_count() == 1:  # ever more seldom: it may be away for hours
            self.plan.say(f"{unit} cannot start: {reason}")
        if not self.has_had_a_unit and self._failures[unit] >= STARTS:
            raise JobFailed(
                f"{unit} cannot start: {reason}", hint="tunefarm doctor, on its machine"
            )
        return self.drop_unit(unit) if unit in self.units else []

    # ---------------------------------------------------------------- letting go

    def _let_go(
        self, there: Mapping[str, farm.Node], working: Collection[Worker | None]
    ) -> list[Heard]:
        heard: list[Heard] = []
        for unit, worker in list(self.units.items()):
            if worker.node not in there or self._use(unit) is Use.QUARANTINED:
                heard += self.drop_unit(unit)
            elif self.is_due(worker) and worker not in working:
                heard += self.drop_unit(unit, gives_way=True)
        for worker in list(self.builders):
            if worker.node not in there or (self.is_due(worker) and worker not in working):
                self.drop_builder(worker)
        return heard

    def is_due(self, worker: Worker) -> bool:
        """Whether it is another job's turn to have its place: it is given nothing more to do."""
        for unit, one in self.units.items():
            if one is worker:
                return not self.share.may_have(self.plan.pool, unit)
        if worker.place.startswith(DEVICE_PLACE):
            return not any(one.node == worker.node for one in self.units.values())
        return not self.share.may_have(BUILDERS, worker.place)

    def drop_unit(self, unit: str, gives_way: bool = False) -> list[Heard]:
        worker = self.units.pop(unit)
        self.joined.discard(unit)
        ray.kill(worker.actor)
        self.coming = {r: who for r, who in self.coming.items() if who != unit}
        return [Left(unit, gives_way)]

    def drop_builder(self, worker: Worker) -> None:
        if worker in self.builders:
            self.builders.remove(worker)
            ray.kill(worker.actor)
        if worker in self.idle:
            self.idle.remove(worker)
        self.coming = {r: who for r, who in self.coming.items() if who is not worker}

    def replace_builder(self, worker: Worker) -> None:
        """By another one at the next turn, should its machine be there."""
        self.drop_builder(worker)
        self.soon()

    def end(self, worker: Worker) -> list[Heard]:
        """One that does not answer: what it had in hand fails at once."""
        for unit, one in list(self.units.items()):
            if one is worker:
                return self.drop_unit(unit)
        self.replace_builder(worker)
        return self._counted()

    def restarts(self, unit: str) -> None:
        """Its process has died. Ray starts it again where its machine is there; else the next look
        drops it."""
        self.coming[self.units[unit].actor.ready.remote()] = unit

    def _counted(self) -> list[Heard]:
        """How many builders have arrived, where that has changed since it was said."""
        now = len(self.builders) - sum(isinstance(who, Worker) for who in self.coming.values())
        before, self._said = self._said, now
        return [Builders(now)] if now != before else []

    def close(self) -> None:
        for worker in (*self.builders, *self.units.values()):
            ray.kill(worker.actor)
        self.share.leave()


DEVICE_PLACE = "beside "


def _places(node: farm.Node) -> list[str]:
    """Names of its places for builders."""
    beside = DEVICE_PLACE if node.devices else ""
    return [f"{beside}{node.id}#{number}" for number in range(node.builders)]
