"""tunefarm bench"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunefarm.cli.common import Shape, json_option, show_json
from tunefarm.cli.measuring import alone, protocol_options, steadied

if TYPE_CHECKING:
    from tunefarm.home import Home
    from tunefarm.results.bench import BenchProtocol
    from tunefarm.results.runtimes.contract import Subject

ALL = "tunefarm,tvm,onnxruntime,openvino,iree,inductor,xla"


@click.command("bench")
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option(
    "--model-zoo",
    "zoo",
    type=click.Choice(["onnx-light", "transformers", "mobile", "grouped", "recurrent", "all"]),
    help="Instead of MODEL: the networks that the onnx package carries, transformers, networks for "
    "small devices, of grouped convolutions, recurrent ones, or all.",
)
@click.option("--runtimes", default=ALL, show_default=True, help="What to compare, by name.")
@click.option(
    "--artifact",
    type=click.Path(path_type=Path),
    help="tunefarm's artifact.  [default: this farm's newest that fits model and host]",
)
@click.option(
    "--shape",
    "shapes",
    type=Shape(),
    multiple=True,
    help="Fix an input's shape: --shape x=1,3,224,224.",
)
@click.option("--threads", type=click.IntRange(min=1), help="[default: all cores]")
@protocol_options(
    "Fresh ones of each runtime and setting; with fewer than six there are no intervals.",
    "Of samples in each process (up to five times as many where an inference is slow).",
)
@click.option(
    "--turn",
    "turn_s",
    type=click.FloatRange(min=0.001),
    default=0.05,
    show_default=True,
    help="Seconds of a turn, of which a process has 500 at most; with as many as --seconds each is "
    "timed in one go.",
)
@json_option
def command(
    model: Path | None,
    zoo: str | None,
    runtimes: str,
    artifact: Path | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    threads: int | None,
    processes: int,
    seconds: float,
    turn_s: float,
    as_json: bool,
) -> None:
    """Run MODEL, or each of a zoo of models, in several runtimes, side by side.

    Same inputs, threads and protocol for each: rounds of fresh processes, all loaded at once, that
    are timed in short turns while the others stand still; each runtime in its best setting,
    results checked against ONNX Runtime without optimisation. What is not installed is named and
    left out.
    """
    from tunefarm.cli.bench_tables import show, show_all
    from tunefarm.errors import JobFailed, TunefarmError, UsageError
    from tunefarm.frontend.zoo.networks import write_zoo_model, zoo_names, zoos
    from tunefarm.home import Home
    from tunefarm.results.bench import BenchProtocol
    from tunefarm.results.bench_figures import summarised
    from tunefarm.results.runtimes import runtime

    names = list(dict.fromkeys(name.strip() for name in runtimes.split(",") if name.strip()))
    if not names:
        raise UsageError("--runtimes names none", hint=f"There are {ALL}")
    for name in names:
        runtime(name)
    if (model is None) == (zoo is None):
        raise UsageError("either MODEL or --model-zoo is needed, and not both")
    if zoo is not None and (artifact is not None or shapes):
        raise UsageError("--artifact and --shape are of one model, not of a zoo")
    home = Home.from_environment().prepare()
    protocol = BenchProtocol(processes=processes, seconds=seconds, turn_s=turn_s)
    if model is not None:
        document = _benched(home, model, artifact, dict(shapes), threads, names, protocol)
        show_json(document) if as_json else show(document)
        _judge([document])
        return
    documents, failed = [], []
    for name in zoos()[zoo] if zoo in zoos() else zoo_names():
        click.echo(name, err=True)
        path = write_zoo_model(name, home.zoo / f"{name}.onnx")
        try:
            documents.append(_benched(home, path, None, {}, threads, names, protocol))
        except TunefarmError as error:  # the others' figures are not lost
            failed.append({"model": path.name, "error": error.message})
            click.echo(f"error: {error.message}", err=True)
    summary = summarised(documents)
    if as_json:
        show_json({"zoo": zoo, "models": documents, "failed": failed, "summary": summary})
    elif documents:
        show_all(documents, summary)
    _judge(documents)
    if failed:
        raise JobFailed(f"failed: {', '.join(one['model'] for one in failed)}")


def _benched(
    home: Home,
    model: Path,
    artifact: Path | None,
    shapes: dict[str, tuple[int, ...]],
    threads: int | None,
    names: list[str],
    protocol: BenchProtocol,
) -> dict[str, Any]:
    """One model's document, recorded."""
    from tunefarm.devices.registry import device_for, local_devices
    from tunefarm.devices.target import make_target
    from tunefarm.results.bench import Watch, bench
    from tunefarm.results.bench_figures import figures
    from tunefarm.results.bench_record import keep, record

    device = device_for(make_target("llvm", {}), local_devices(home))
    with _subject(home, model, artifact, shapes, threads, names) as (subject, directory):
        with alone(device, "bench"), steadied(home, device) as machine:
            watch = Watch(
                lambda text: click.echo(text, err=True),
                machine.wait,
                lambda e: keep(directory, e),
                machine.near_s,
            )
            entries = bench(subject, names, protocol, watch)
        return record(home, directory, subject, entries, figures(entries, protocol), protocol)


@contextlib.contextmanager
def _subject(
    home: Home,
    model: Path,
    artifact: Path | None,
    shapes: dict[str, tuple[int, ...]],
    threads: int | None,
    names: Sequence[str],
) -> Iterator[tuple[Subject, Path]]:
    """The model with its shapes fixed, in a directory that goes when all is done, and the one for
    what stays."""
    import tempfile
    import time

    import onnx

    from tunefarm.devices.cpu import usable_cores
    from tunefarm.errors import UnsupportedModel
    from tunefarm.frontend.onnx.file import ImportLimits, bind_shapes, input_specs, read_model
    from tunefarm.frontend.onnx.identity import model_digest
    from tunefarm.results.artifact_file import open_artifact, rounded_to
    from tunefarm.results.bench_figures import OURS
    from tunefarm.results.runtimes.contract import Subject

    loaded = read_model(model, ImportLimits())
    digest = model_digest(model, here=True)
    bind_shapes(loaded, shapes)
    if loaded.ByteSize() >= 2**31 - 1:
        raise UnsupportedModel(f"{model} has more than 2 GiB with its weights")
    if shapes:  # what was written of shapes further on is of the old ones
        del loaded.graph.value_info[:]
        for output in loaded.graph.output:
            output.type.tensor_type.ClearField("shape")
        loaded = onnx.shape_inference.infer_shapes(loaded)
    inputs = input_specs(loaded)
    home.benches.mkdir(exist_ok=True)
    stamp = time.strftime(f"{model.stem}-%Y%m%d-%H%M%S-", time.gmtime())
    directory = Path(tempfile.mkdtemp(prefix=stamp, dir=home.benches))
    with tempfile.TemporaryDirectory(prefix="tunefarm-bench-") as work:
        fixed = Path(work) / model.name
        onnx.save(loaded, fixed)
        chosen = artifact.absolute() if artifact is not None else _newest(home, digest, inputs)
        outputs = tuple(output.name for output in loaded.graph.output)
        threads = threads or usable_cores()
        beside = chosen if OURS in names else None
        rounds = rounded_to(open_artifact(beside).manifest) if beside is not None else ""
        yield Subject(fixed, inputs, outputs, threads, Path(work), chosen, rounds), directory


def _newest(home: Home, digest: str, inputs: Any) -> Path | None:
    """The newest artifact of this model, with these shapes, that runs here."""
    from tunefarm.errors import ArtifactError
    from tunefarm.results.artifact_file import misfits, open_artifact
    from tunefarm.results.journal import Journal

    wanted = [(spec.name, list(spec.shape), spec.dtype) for spec in inputs]
    journal = Journal(home)
    try:
        for row in journal.artifacts():
            if journal.job(row["job"]).model_digest != digest:
                continue
            try:
                manifest = open_artifact(Path(row["path"])).manifest
            except ArtifactError:
                continue
            has = [(one["name"], list(one["shape"]), one["dtype"]) for one in manifest["inputs"]]
            if has == wanted and not misfits(manifest):
                return Path(row["path"])
    finally:
        journal.close()
    return None


def _judge(documents: list[dict[str, Any]]) -> None:
    """Ours is what the command is about: that it fails or is wrong is its failure, once all that
    was found has been shown."""
    from tunefarm.errors import ArtifactError

    for row in (row for document in documents for row in document["runtimes"]):
        failed = row.get("out", "").startswith("failed")
        if row["runtime"] == "tunefarm" and (failed or not row.get("right", True)):
            click.echo("error: tunefarm's artifact fails, or computes something else", err=True)
            sys.exit(ArtifactError.exit_code)
