"""tunefarm worker join"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from tunefarm.home import Home
    from tunefarm.scheduler.ray_node import Joining, RayNode

REJOIN_S = 5.0


@click.group("worker")
def command() -> None:
    """This machine as a part of a farm."""


@command.command("join")
@click.argument("address")
@click.option(
    "--token",
    metavar="FILE",
    help="The farm's token.  [default: farm.token in this farm's home]",
)
@click.option("--host", help="Address of this machine.  [default: the one that reaches the head]")
@click.option("--no-device", is_flag=True, help="Build here, and measure nothing.")
@click.option(
    "--builders", type=click.IntRange(min=0), help="Builds at a time; 0 for none.  [default: cores]"
)
def join(
    address: str, token: str | None, host: str | None, no_device: bool, builders: int | None
) -> None:
    """Offer this machine's devices and builders to the farm at ADDRESS (HOST:PORT), until Ctrl-C.

    It must have the same tunefarm, Python and TVM: with another tunefarm it is left alone, and jobs
    say so. Where builders and a device share a machine they take turns; with `--builders 0` this
    one only measures.
    """
    from tunefarm.home import Home
    from tunefarm.scheduler.token import existing_token

    home = Home.from_environment().prepare()
    joining = bring(
        home,
        existing_token(home, token),
        host or _own_address(address),
        0,
        address,
        no_device,
        builders,
    )
    stay(
        joining,
        [
            f"joined the farm at {address} as {joining.host}",
            f"devices offered: {', '.join(joining.devices) or 'none'}; builds at a time: "
            f"{joining.builders}",
        ],
    )


def bring(
    home: Home,
    token: Path,
    host: str,
    port: int,
    head: str | None,
    no_device: bool,
    builders: int | None,
) -> Joining:
    """What this machine offers: its devices are probed where that was not done."""
    from tunefarm.devices import cpu
    from tunefarm.devices.registry import local_devices
    from tunefarm.scheduler.ray_node import Joining

    cores = cpu.usable_cores()
    devices = () if no_device else tuple(device.id for device in local_devices(home))
    count = cores if builders is None else builders
    return Joining(home, token.absolute(), devices, count, cores, host, port, head)


class Closable(Protocol):
    def close(self) -> None: ...


def stay(joining: Joining, lines: list[str], beside: Callable[[], Closable] | None = None) -> None:
    """Run Ray here until Ctrl-C and, once it runs, what `beside` makes; say `lines` then. A machine
    that has lost its head joins it again as soon as it is back."""
    import signal

    from tunefarm.errors import FarmUnreachable
    from tunefarm.scheduler.ray_node import RayNode

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with contextlib.ExitStack() as stack:
        try:
            _run(RayNode(joining), lines, beside, stack)
            while joining.head is not None:
                click.echo(f"lost the farm at {joining.head}; joining it again", err=True)
                time.sleep(REJOIN_S)
                with contextlib.suppress(FarmUnreachable):  # it is not there again yet
                    _run(RayNode(joining), lines, beside, stack)
            raise FarmUnreachable("Ray has ended here", hint=f"Why: {joining.home.root}/farm.log")
        except KeyboardInterrupt:
            click.echo("left the farm" if joining.head else "the farm is down", err=True)


def _run(
    node: RayNode,
    lines: list[str],
    beside: Callable[[], Closable] | None,
    stack: contextlib.ExitStack,
) -> None:
    """Until Ray ends.

    Raises:
        FarmUnreachable: it does not start.
    """
    try:
        node.await_start()
        if beside is not None:
            stack.enter_context(contextlib.closing(beside()))
        for line in lines:
            click.echo(line)
        while not node.wait(1.0):
            pass
    finally:
        node.close()


def _own_address(head: str) -> str:
    """The address that this machine has on the way to `head`."""
    import socket

    from tunefarm.errors import UsageError

    host, _, port = head.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise UsageError(f"{head} is no HOST:PORT that can be reached: {error}") from None
