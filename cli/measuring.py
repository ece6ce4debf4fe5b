"""What a command that measures asks of the machine: its device alone, and a quiet moment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def steadied(home: Home, device: Device) -> Iterator[Any]:
    """Waits a while for the machine to be all there, where the roof's gauge is known."""
    from tunefarm.measure.protocol import Protocol
    from tunefarm.measure.roofline import roof_path
    from tunefarm.measure.runner import Runner

    runner = Runner(device.cores, Protocol().memory_bytes, roof_path(home, device))
    try:
        yield runner.await_steady
    finally:
        runner.close()
