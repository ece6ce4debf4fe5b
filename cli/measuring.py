"""What a command that measures asks of the machine: its device alone, and a quiet moment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tunefarm.devices.device import Device
    from tunefarm.home import Home


Command = TypeVar("Command", bound=Callable[..., Any])


def protocol_options(processes: str, seconds: str) -> Callable[[Command], Command]:
    """``--processes`` and ``--seconds``, with what each says of itself."""

    def with_options(command: Command) -> Command:
        first = click.option(
            "--processes", type=click.IntRange(min=1), default=6, show_default=True, help=processes
        )
        second = click.option(
            "--seconds",
            type=click.FloatRange(min=0.01),
            default=2.0,
            show_default=True,
            help=seconds,
        )
        return first(second(command))

    return with_options


@contextlib.contextmanager
def alone(device: Device, who: str) -> Iterator[None]:
    """Nothing else of any farm measures on this device meanwhile."""
    from tunefarm.devices.lock import DeviceLock

    lock = DeviceLock(device)
    lock.wait(
        {"job": who},
        lambda job: click.echo(f"waiting: {device.id} is busy with {job}", err=True),
        lambda: None,
    )
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class Machine:
    """Whose gauges are asked.

    Attributes:
        wait: for it to be all there, so many seconds at most, where the roof's gauge is known;
            whether it is. With 0.0 it is asked, once.
        near_s: what an exchange between near cores takes (`devices.cores`), 0.0 of a GPU.
    """

    wait: Callable[[float], bool]
    near_s: float


@contextlib.contextmanager
def steadied(home: Home, device: Device) -> Iterator[Machine]:
    from tunefarm.measure.protocol import Protocol
    from tunefarm.measure.roofline import nearest, roof_path
    from tunefarm.measure.runner import Runner
    from tunefarm.measure.steady import near_from_file

    path, near_s = roof_path(home, device), 0.0
    if device.target.kind == "llvm":
        near_s = near_from_file(path) or nearest()
    runner = Runner(device.cores, Protocol().memory_bytes, path)
    try:
        yield Machine(runner.await_steady, near_s)
    finally:
        runner.close()
