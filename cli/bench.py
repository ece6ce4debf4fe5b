"""tunefarm bench"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunefarm.cli.common import Shape, format_latency, json_option, show_json

if TYPE_CHECKING:
    from tunefarm.home import Home
    from tunefarm.results.runtimes.contract import Subject

ALL = "tunefarm,tvm,onnxruntime,openvino,iree,inductor,xla"


@click.command("bench")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--runtimes", default=ALL, show_default=True, help="What to compare, by name.")
@click.option(
    "--artifact",
    type=click.Path(path_type=Path),
    help="tunefarm's artifact.  [default: this farm's newest of the model]",
)
@click.option(
    "--shape",
    "shapes",
    type=Shape(),
    multiple=True,
    help="Fix an input's shape: --shape x=1,3,224,224.",
)
@click.option("--threads", type=click.IntRange(min=1), help="[default: all cores]")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=6,
    show_default=True,
    help="Fresh ones of each runtime and setting; fewer than six cannot give 95 %.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01),
    default=2.0,
    show_default=True,
    help="Of samples, in each process.",
)
@json_option
def command(
    model: Path,
    runtimes: str,
    artifact: Path | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    threads: int | None,
    processes: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Run MODEL in several runtimes, side by side.

    Same inputs, threads and protocol for each: fresh processes, in turns, each runtime in its best
    setting, results checked against ONNX Runtime without optimisation. What is not installed is
    named and left out.
    """
    from tunefarm.home import Home
    from tunefarm.results.bench import BenchProtocol, bench, figures
    from tunefarm.results.bench_record import record
    from tunefarm.results.runtimes import runtime

    names = list(dict.fromkeys(name.strip() for name in runtimes.split(",") if name.strip()))
    for name in names:
        runtime(name)
    home = Home.from_environment().prepare()
    subject = _subject(home, model, artifact, dict(shapes), threads)
    protocol = BenchProtocol(processes=processes, seconds=seconds)
    with _Waiting(home) as wait:
        entries = bench(subject, names, protocol, lambda text: _say(text, as_json), wait)
    rows = figures(entries, protocol)
    document = record(home, subject, entries, rows, protocol)
    if as_json:
        show_json(document)
    else:
        _show(rows, document)


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        click.echo(text, err=True)


def _subject(
    home: Home,
    model: Path,
    artifact: Path | None,
    shapes: dict[str, tuple[int, ...]],
    threads: int | None,
) -> Subject:
    """The model with its shapes fixed, in a directory of this benchmark's own."""
    import hashlib
    import time

    import onnx

    from tunefarm.devices.cpu import usable_cores
    from tunefarm.frontend.onnx_file import ImportLimits, bind_shapes, input_specs, read_model
    from tunefarm.results.runtimes.contract import Subject

    loaded = read_model(model, ImportLimits())
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    bind_shapes(loaded, shapes)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    directory = home.benches / f"{model.stem}-{stamp}"
    directory.mkdir(parents=True, exist_ok=True)
    fixed = directory / model.name
    onnx.save(loaded, fixed)
    return Subject(
        fixed,
        input_specs(loaded),
        tuple(output.name for output in loaded.graph.output),
        threads or usable_cores(),
        directory,
        artifact.absolute() if artifact is not None else _newest_artifact(home, digest),
    )


def _newest_artifact(home: Home, digest: str) -> Path | None:
    from tunefarm.results.journal import Journal

    journal = Journal(home)
    try:
        for row in journal.artifacts():
            path = Path(row["path"])
            if journal.job(row["job"]).model_digest == digest and path.exists():
                return path
    finally:
        journal.close()
    return None


class _Waiting:
    """Waits until the machine is all there, with the roof's gauge where one is known."""

    def __init__(self, home: Home) -> None:
        from tunefarm.devices.probe import probe
        from tunefarm.measure.protocol import Protocol
        from tunefarm.measure.roofline import roof_path
        from tunefarm.measure.runner import Runner

        (device,) = probe()
        self._runner = Runner(device.cores, Protocol().memory_bytes, roof_path(home, device))

    def __enter__(self) -> Any:
        return self._runner.await_steady

    def __exit__(self, *_: object) -> None:
        self._runner.close()


def _show(rows: list[dict[str, Any]], document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{document['model']}, {document['threads']} threads")
    for name in ("runtime", "setting"):
        table.add_column(name)
    for name in (
        *("median", "95 % interval", "tunefarm is\ntimes faster", "compile s", "load s"),
        *("first", "memory", "max rel.\nerror"),
    ):
        table.add_column(name, justify="right")
    out = [row for row in rows if "out" in row]
    for row in sorted((r for r in rows if "out" not in r), key=lambda r: r["median_ms"]):
        low, high = row["ci95_ms"]
        faster = row.get("ours_faster")
        table.add_row(
            row["runtime"],
            row["setting"],
            format_latency(row["median_ms"]),
            f"{low:.4g} to {high:.4g}",
            f"{faster[0]:.2f} ({faster[1]:.2f} to {faster[2]:.2f})" if faster else "",
            f"{row['compile_s']:.0f}",
            f"{row['load_s']:.2f}",
            format_latency(row["first_ms"]),
            f"{row['peak_bytes'] / 2**20:.0f} MiB",
            f"{row['max_rel_err']:.0e}{'' if row['right'] else '  WRONG'}",
        )
    Console().print(table)
    for row in out:
        click.echo(f"{row['runtime']} {row['out']}")
    click.echo(f"all figures: {document['directory']}/bench.json")
    click.echo(f"plot: {document['directory']}/bench.png")
