"""tunefarm ui"""

from __future__ import annotations

import os
import sys

import click


@click.command("ui")
@click.option("--port", default=5000, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="It has no password.")
@click.option("--tracking-uri", help="Another MLflow store.  [default: the farm home's own]")
def command(port: int, host: str, tracking_uri: str | None) -> None:
    """Open the MLflow UI on this farm's store (Ctrl-C ends it)."""
    from tunefarm.home import Home
    from tunefarm.results.tracking import prepare_environment

    home = Home.from_environment().prepare()
    prepare_environment()
    # MLflow's job runner is unauthenticated and takes half of the start-up; nothing here uses it.
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    uri = tracking_uri or home.mlflow_uri
    click.echo(f"MLflow UI of {uri}: http://{host}:{port} (about 15 s to start)", err=True)
    arguments = ["server", "--backend-store-uri", uri, "--host", host, "--port", str(port)]
    arguments += ["--workers", "1", "--default-artifact-root", home.mlflow_files.as_uri()]
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", *arguments])
