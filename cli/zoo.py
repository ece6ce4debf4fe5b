"""tunefarm zoo"""

from __future__ import annotations

from pathlib import Path

import click

from tunefarm.cli.common import json_option, show_json


@click.command("zoo")
@click.argument("name", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="[default: NAME.onnx]")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the weights."
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16", "int8", "uint8", "uint8-7bit", "dynamic"]),
    default="float32",
    show_default=True,
    help="Of the weights, and of what goes in and comes out; int8 and uint8: quantised, that being "
    "the type of what lies between operators; uint8-7bit: with weights of 7 bits, for processors "
    "without VNNI; dynamic: products of matrices, when it runs.",
)
@json_option
def command(name: str | None, output: Path | None, seed: int, dtype: str, as_json: bool) -> None:
    """Write a real network with seeded random weights: one of the onnx package's, a transformer,
    a convolutional network for small devices, or a recurrent one that reads text.

    Without NAME, list them.
    """
    from tunefarm.errors import UsageError
    from tunefarm.frontend.zoo.networks import write_zoo_model, zoo_names

    if name is None:
        names = list(zoo_names())
        show_json({"networks": names}) if as_json else click.echo("\n".join(names))
        return
    path = output or Path(f"{name}.onnx")
    try:
        write_zoo_model(name, path, seed, dtype)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
    show_json({"path": str(path)}) if as_json else click.echo(str(path))
