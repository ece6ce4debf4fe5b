"""tunefarm artifacts"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tunefarm.cli.common import format_latency, format_ratio, json_option, show_json
from tunefarm.cli.desk import farm_options, open_desk


@click.group("artifacts")
def command() -> None:
    """List, pull, inspect, verify and run artifacts."""


def _times(speedup: float | None) -> str:
    return "-" if speedup is None else f"{format_ratio(speedup)}x"


@command.command("list")
@farm_options
@json_option
def list_(farm: str | None, token: str | None, as_json: bool) -> None:
    """Every artifact this farm has packaged, newest first."""
    rows = open_desk(farm, token).artifacts()
    if as_json:
        show_json({"artifacts": rows})
        return
    for row in rows:
        click.echo(
            f"{row['name']}@{row['target']}  {row['verdict']}  {_times(row['speedup'])}  "
            f"{format_latency(row['tuned_ms'])}  {row['digest'][:12]}  {row['path']}"
        )
    if not rows:
        click.echo("no artifacts yet; make one: tunefarm submit MODEL --targets llvm")


@command.command("pull")
@click.argument("reference", metavar="NAME[@ALIAS]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Directory to put it in.",
)
@click.option("--tracking-uri", help="MLflow registry.  [default: the farm home's own]")
@farm_options
@json_option
def pull(
    reference: str,
    output: Path,
    tracking_uri: str | None,
    farm: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Fetch an artifact from the registry by name and alias; checked on arrival.

    The alias is its target, and may be left out where there is only one.
    """
    from tunefarm.errors import ArtifactTampered, UsageError
    from tunefarm.home import Home
    from tunefarm.results.artifact_file import open_artifact, verify

    name, _, alias = reference.partition("@")
    if tracking_uri is not None and farm is not None:
        raise UsageError("--tracking-uri and --farm are two places: name one of them")
    # Under its name there is only what is known to be whole: what was there before, until then.
    with _new_directory(output) as place:
        if tracking_uri is None:
            found, digest = open_desk(farm, token).fetch(name, alias or None, place)
        else:
            from tunefarm.results import tracking

            home = Home.from_environment().prepare()
            found, digest = tracking.pull(home, tracking_uri, name, alias or None, place)
        artifact = open_artifact(found)
        if artifact.digest != digest:
            raise ArtifactTampered(
                f"{reference}: the registry promised {digest[:12]}, this is {artifact.digest[:12]}"
            )
        verify(artifact)
        path = output / found.name
        try:
            os.replace(found, path)
        except OSError as error:  # a directory of that name, unpacked there
            raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
    if as_json:
        show_json({"path": str(path), "digest": digest})
    else:
        click.echo(f"{path}  {digest}")


@contextlib.contextmanager
def _new_directory(inside: Path) -> Iterator[Path]:
    """One inside a directory, which is made if it is not there, gone afterwards.

    Raises:
        UsageError: it cannot be made.
    """
    from tunefarm.errors import UsageError

    try:
        inside.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=".tunefarm-", dir=inside)
    except OSError as error:
        raise UsageError(f"nothing can be put in {inside}: {error.strerror or error}") from None
    with made as directory:
        yield Path(directory)


@command.command("inspect")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def inspect(path: Path, as_json: bool) -> None:
    """Say what an artifact is: model, target, result, what it needs of a host."""
    from tunefarm.cli import results
    from tunefarm.devices.target import make_target
    from tunefarm.results.artifact_file import misfits, open_artifact

    artifact = open_artifact(path)
    if as_json:
        show_json({**artifact.manifest, "digest": artifact.digest})
        return
    manifest = artifact.manifest
    result = manifest["result"]
    tuned = sum(kernel["tuned"] for kernel in manifest["kernels"])
    click.echo(f"{manifest['name']}  {artifact.digest}")
    click.echo(f"model     {manifest['model']['source']}  {manifest['model']['digest'][:12]}")
    target = dict(manifest["target"])
    click.echo(f"target    {make_target(target.pop('kind'), target).text}")
    sku = manifest["device"]["sku"]
    threads = manifest["threads"]
    click.echo(f"device    {sku}, {threads} threads" if sku else "device    none")
    if result["speedup"] is None:
        click.echo(f"result    {result['verdict']}")
    else:
        low, high = map(format_ratio, result["speedup_ci95"])
        click.echo(
            f"result    {result['verdict']}: {format_latency(result['baseline_ms'])} to "
            f"{format_latency(result['tuned_ms'])}, {_times(result['speedup'])} ({low} to {high})"
        )
    if why := manifest.get("why_untuned"):
        click.echo(f"          the untuned build: {why}")
    for line in results.service(result):
        click.echo(f"          {line}")
    if result["parity"]["passed"] is not None:
        where = result["parity"].get("ran_on")
        held = f"{results.off(result['parity'])} against ONNX Runtime"
        click.echo(f"parity    {held}{f', on {where}' if where else ''}")
    click.echo(f"kernels   {len(manifest['kernels'])} distinct, {tuned} tuned")
    for kind in ("inputs", "outputs"):
        for spec in manifest[kind]:
            click.echo(f"{kind[:-1]:<9} {spec['name']}: {spec['dtype']}{spec['shape']}")
    found = misfits(manifest)
    click.echo(f"this host {'; '.join(found) if found else 'can run it'}")


@command.command("verify")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def verify_(path: Path, as_json: bool) -> None:
    """Check every part against the manifest. Exit code 6 when anything is off."""
    from tunefarm.results.artifact_file import open_artifact, verify

    artifact = open_artifact(path)
    names = verify(artifact)
    if as_json:
        show_json({"path": str(path), "digest": artifact.digest, "verified": names})
    else:
        click.echo(f"{path}: {len(names)} parts sound, digest {artifact.digest}")


@command.command("run")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    help="An .npz with one array per input.  [default: random]",
)
@click.option(
    "--outputs",
    type=click.Path(path_type=Path),
    help="Write the outputs here (.npz; of bfloat16, which it cannot hold, as float32).",
)
@click.option("--repeat", default=10, show_default=True, help="Requests after the first.")
@json_option
def run(path: Path, inputs: Path | None, outputs: Path | None, repeat: int, as_json: bool) -> None:
    """Run an artifact with the TVM runtime alone, and time its load and first requests."""
    import statistics
    import zipfile

    import numpy as np

    from tunefarm.errors import UsageError
    from tunefarm.frontend.dtypes import from_npz, numpy_dtype, save_npz
    from tunefarm.home import atomically
    from tunefarm.results.loader import load

    model = load(path)
    if inputs is None:
        generator = np.random.default_rng(0)
        feed = {
            s["name"]: generator.uniform(-1, 1, s["shape"]).astype(numpy_dtype(s["dtype"]))
            for s in model.inputs
        }
    else:
        types = {s["name"]: s["dtype"] for s in model.inputs}
        try:
            with np.load(inputs, allow_pickle=False) as stored:
                feed = {name: from_npz(stored[name], types.get(name, "")) for name in stored.files}
        except (OSError, ValueError, TypeError, zipfile.BadZipFile, EOFError) as error:
            raise UsageError(f"{inputs} is not an .npz of arrays: {error}") from None
    results = model(feed)
    latencies = []
    for _ in range(max(1, repeat)):
        started = time.perf_counter()
        model(feed)
        latencies.append(time.perf_counter() - started)
    if outputs is not None:
        outputs = outputs if outputs.suffix == ".npz" else outputs.with_name(f"{outputs.name}.npz")
        try:
            with atomically(outputs) as file:
                save_npz(file, results)
        except OSError as error:
            raise UsageError(f"{outputs} cannot be written: {error.strerror or error}") from None
    timings: dict[str, Any] = {f"{k}_ms": round(v * 1e3, 4) for k, v in model.timings.items()}
    timings["median_ms"] = round(statistics.median(latencies) * 1e3, 4)
    shapes = {name: list(array.shape) for name, array in results.items()}
    if as_json:
        show_json({"timings": timings, "outputs": shapes})
        return
    for name, array in results.items():
        click.echo(f"{name}: {array.dtype}{list(array.shape)} mean {array.mean():.6g}")
    click.echo("  ".join(f"{name} {value}" for name, value in timings.items()))
