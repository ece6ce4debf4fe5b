"""tunefarm up"""

from __future__ import annotations

import click


@click.command("up")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to be reached at.")
@click.option("--port", type=int, default=6379, show_default=True)
@click.option("--no-device", is_flag=True, help="Nothing is measured on this machine.")
@click.option("--builders", type=click.IntRange(min=0), help="Builds at a time.  [default: cores]")
def command(host: str, port: int, no_device: bool, builders: int | None) -> None:
    """Make this machine the head of a farm, until Ctrl-C.

    Other machines join with `tunefarm worker join`, jobs come with `tunefarm submit --farm`. Nobody
    gets in without the token that is made in this farm's home.
    """
    from tunefarm.cli.worker import bring, stay
    from tunefarm.home import Home
    from tunefarm.scheduler.token import make_token

    home = Home.from_environment().prepare()
    token = make_token(home)
    joining = bring(home, token, host, port, None, no_device, builders)
    listens = f"{host}:{port} (its control store); its other ports are Ray's choice"
    stay(
        joining,
        [
            f"the farm is up at {host}:{port}",
            f"devices here: {', '.join(joining.devices) or 'none'}; builds at a time: "
            f"{joining.builders}",
            f"token: {token} (mode 0600): who has it may run anything on the farm",
            f"listening: {listens}, on every interface of this machine, and with the token alone",
            f"join: tunefarm worker join {host}:{port} --token FILE",
            f"submit: tunefarm submit MODEL --farm {host}:{port}",
        ],
    )
