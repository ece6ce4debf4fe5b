"""tunefarm up"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tunefarm.home import Home
    from tunefarm.scheduler.door.server import Door, Frame


@click.command("up")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to be reached at.")
@click.option("--port", type=int, default=6379, show_default=True, help="For its machines.")
@click.option("--door", type=int, default=8470, show_default=True, help="Port for its users.")
@click.option(
    "--certificate",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Of the door (PEM, with the chain): it speaks TLS.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Of the certificate (PEM).",
)
@click.option("--no-device", is_flag=True, help="Nothing is measured on this machine.")
@click.option("--builders", type=click.IntRange(min=0), help="Builds at a time.  [default: cores]")
def command(
    host: str,
    port: int,
    door: int,
    certificate: Path | None,
    key: Path | None,
    no_device: bool,
    builders: int | None,
) -> None:
    """Make this machine the head of a farm, until Ctrl-C.

    Other machines join with `tunefarm worker join`. Jobs come through its door, from any machine:
    `tunefarm submit --farm`. Nobody gets in without a token: one for machines, one for users, both
    made in this farm's home.
    """
    from tunefarm.cli.worker import bring, stay
    from tunefarm.errors import UsageError
    from tunefarm.home import Home
    from tunefarm.scheduler.door.server import Frame
    from tunefarm.scheduler.token import door_token_path, make_token, token_path

    if (certificate is None) != (key is None):
        raise UsageError("--certificate and --key belong together")
    if certificate is not None:
        _check_certificate(certificate, key)
    home = Home.from_environment().prepare()
    token, users = make_token(token_path(home)), make_token(door_token_path(home))
    frame = Frame(host, door, certificate, key)
    joining = bring(home, token, host, port, None, no_device, builders)
    address = f"{host}:{port}"
    plain = "" if certificate or host == "127.0.0.1" else ": not encrypted, see --certificate"
    stay(
        joining,
        [
            f"the farm is up at {address}",
            f"devices here: {', '.join(joining.devices) or 'none'}; builds at a time: "
            f"{joining.builders}",
            f"listening for machines: {address} (its control store); Ray's other ports are Ray's "
            "choice; on every interface of this machine",
            f"  token: {token} (mode 0600): who has it may run anything on the farm",
            f"  join: tunefarm worker join {address} --token FILE",
            f"listening for users: {frame.url} (the door{plain})",
            f"  token: {users} (mode 0600): who has it may submit jobs and fetch results",
            f"  submit: tunefarm submit MODEL --farm {frame.url} --token FILE",
        ],
        lambda: _door(home, address, token, users, frame),
    )


def _check_certificate(certificate: Path, key: Path | None) -> None:
    """
    Raises:
        UsageError: the door could not speak TLS with them.
    """
    from tunefarm.errors import UsageError

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:  # `ssl`'s own errors are of the former
        raise UsageError(
            f"--certificate {certificate} with --key {key} cannot be used: {error}",
            hint="Both are PEM files, the key without a password.",
        ) from None


def _door(home: Home, address: str, token: Path, users: Path, frame: Frame) -> Door:
    from tunefarm.scheduler.desk import HomeDesk
    from tunefarm.scheduler.door.server import Door, make_app

    desk = HomeDesk(home, {"address": address, "token": str(token)})
    return Door(make_app(desk, users.read_text().strip()), frame)
