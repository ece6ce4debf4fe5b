"""How a benchmark's figures are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from tunefarm.cli.common import format_seconds


def show(document: dict[str, Any]) -> None:
    """One model: a row for each runtime, fastest first."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    rows = document["runtimes"]
    title = f"{document['model']}, {document['threads']} threads"
    if document.get("rounds"):
        title += f", in {document['rounds']} where a runtime can"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("runtime", min_width=12)
    for name in ("ms", "95 %", "p99", "ours, times\nfaster", "ready s", "MiB", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sorted((r for r in rows if "out" not in r), key=lambda r: r["median_ms"]):
        table.add_row(*_cells(row))
    Console().print(table)
    for row in rows:
        if "out" in row:
            click.echo(f"{row['runtime']} {row['out']}")
        elif row["disturbed"]:
            share = f"{row['disturbed']} of {row['turns']} turns"
            click.echo(f"{row['runtime']}: {share} on a disturbed machine")
    click.echo(
        "ms: median of an inference; p99: one in a hundred takes longer. Ours: tunefarm. Ready:\n"
        "from nothing imported to the first answer. MiB: the process's peak. Error: largest\n"
        "relative, to ONNX Runtime unoptimised."
    )
    for row in rows:
        if row.get("compile_s"):
            click.echo(f"{row['runtime']}: prepared in {format_seconds(row['compile_s'])}")
    click.echo(f"figures, samples, plot: {document['directory']}")


def _cells(row: dict[str, Any]) -> list[str]:
    interval, faster = row["ci95_ms"], row.get("ours_faster")
    ratio = ""
    if faster:
        ratio = f"{faster['speedup']:.2f}"
        if faster["ci95"]:
            ratio += f" ({faster['ci95'][0]:.2f}-{faster['ci95'][1]:.2f})"
    error = row["max_rel_err"]
    return [
        row["runtime"] + ("" if row["setting"] == "default" else f", {row['setting']}"),
        f"{row['median_ms']:.4g}",
        f"{interval[0]:.3g}-{interval[1]:.3g}" if interval else "",
        "" if row["p99_ms"] is None else f"{row['p99_ms']:.3g}",
        ratio,
        f"{row['ready_s']:.2f}",
        f"{row['peak_bytes'] / 2**20:.0f}",
        ("none" if error is None else f"{error:.0e}") + ("" if row["right"] else " WRONG"),
    ]


def show_all(documents: Sequence[dict[str, Any]], summary: dict[str, Any]) -> None:
    """Several models: a row for each, a column for each runtime."""
    from rich.console import Console
    from rich.table import Table

    names = list(dict.fromkeys(r["runtime"] for d in documents for r in d["runtimes"]))
    table = Table(title=f"milliseconds of an inference, {documents[0]['threads']} threads")
    table.add_column("model")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("ours, against\nthe best other", justify="right")
    for document, against in zip(documents, summary["models"], strict=True):
        of = {row["runtime"]: row for row in document["runtimes"]}
        ratio = against["ours_faster"]
        table.add_row(
            document["model"].removesuffix(".onnx"),
            *(_milliseconds(of.get(name)) for name in names),
            "" if ratio is None else f"{ratio:.2f} ({against['best']})",
        )
    Console().print(table)
    if summary["geometric_mean"] is not None:
        click.echo(
            f"times faster than the best other runtime of each, geometric mean over "
            f"{summary['counted']}: {summary['geometric_mean']:.3f}; at least as fast on "
            f"{summary['won']}"
        )


def _milliseconds(row: dict[str, Any] | None) -> str:
    if row is None or "out" in row:
        return "-"
    return f"{row['median_ms']:.4g}" + ("" if row["right"] else " WRONG")
