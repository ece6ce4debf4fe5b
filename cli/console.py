"""Live progress on a terminal, plain lines elsewhere; the job's log gets the lines either way."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, TextIO

from tunefarm.cli.common import format_latency, format_seconds
from tunefarm.scheduler.progress import Snapshot

_LINE_EVERY_S = 5.0
_PHASES = {
    "import": "importing the model",
    "roof": "measuring what this machine can do",
    "layout": "measuring two layouts",
    "baseline": "measuring untuned kernels",
    "tune": "tuning",
    "race": "racing the best candidates",
    "variants": "compiling the model's variants",
    "place": "racing candidates inside the model",
    "final": "held-out runs",
    "assemble": "compiling the whole model",
    "compare": "tuned against untuned model",
    "check": "checking what the model computes",
    "package": "packaging",
    "track": "writing MLflow",
}


def describe(snapshot: Snapshot) -> str:
    """One line of plain text."""
    parts = [f"{format_seconds(snapshot.elapsed_s)} {_phase(snapshot)}"]
    if snapshot.kernels:
        parts.append(
            f"{snapshot.built} built, {snapshot.measured}/{snapshot.trials} measured, "
            f"{snapshot.failed} failed"
        )
    if snapshot.best_s and snapshot.untuned_s:
        parts.append(
            f"best {format_latency(snapshot.best_s * 1e3)} "
            f"({snapshot.untuned_s / snapshot.best_s:.1f}x)"
        )
    if snapshot.left_s is not None:
        parts.append(f"about {format_seconds(snapshot.left_s)} left")
    target = f"{snapshot.target}: " if snapshot.target else ""
    return target + ", ".join(parts)


def _phase(snapshot: Snapshot) -> str:
    said = _PHASES.get(snapshot.phase, snapshot.phase)
    if snapshot.processes is None:
        return said
    done, of = snapshot.processes
    return f"{said}, {done} of {of} processes done"


class ConsoleReporter:
    """Progress for a person (or a log file) on standard error."""

    def __init__(self, log: Path, stream: TextIO | None = None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("a", buffering=1)
        self._stream = stream or sys.stderr
        self._live: Any = None
        self._last_text, self._last_time, self._last_phase = "", 0.0, ""
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream)
            self._live = Live(console=console, refresh_per_second=4, transient=True)
            self._live.start()

    def update(self, snapshot: Snapshot) -> None:
        text = describe(snapshot)
        due = time.monotonic() - self._last_time > _LINE_EVERY_S
        if snapshot.phase != self._last_phase or (due and text != self._last_text):
            self.note(text)
            if self._live is None:
                self._print(text)
            self._last_text, self._last_time = text, time.monotonic()
            self._last_phase = snapshot.phase
        if self._live is not None:
            self._live.update(_panel(snapshot))

    def line(self, text: str) -> None:
        self.note(text)
        if self._live is not None:
            self._live.console.print(text, style="dim", highlight=False, markup=False)
        else:
            self._print(text)

    def _print(self, text: str) -> None:
        """A reader that has gone away (`2>&1 | head`) must not end a job."""
        try:
            print(text, file=self._stream, flush=True)
        except (OSError, ValueError):
            pass

    def note(self, text: str) -> None:
        """For the log alone."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            self._log.write(f"{stamp} {text}\n")
        except (OSError, ValueError):
            pass

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._log.close()


def _panel(snapshot: Snapshot) -> Any:
    from rich import box
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 3))
    for _ in range(4):
        grid.add_column()

    def cell(label: str, value: str, style: str = "bold") -> Text:
        return Text.assemble((f"{label} ", "dim"), (value, style))

    grid.add_row(
        cell("kernels", str(snapshot.kernels or "-")),
        cell("built", str(snapshot.built)),
        cell("measured", f"{snapshot.measured}/{snapshot.trials or '-'}"),
        cell("failed", str(snapshot.failed), "bold red" if snapshot.failed else "bold"),
    )
    best = snapshot.best_s and snapshot.best_s * 1e3
    gain = snapshot.untuned_s / snapshot.best_s if snapshot.best_s and snapshot.untuned_s else None
    grid.add_row(
        cell("untuned", format_latency(snapshot.untuned_s and snapshot.untuned_s * 1e3)),
        cell("best", format_latency(best), "bold cyan"),
        cell("gain", f"{gain:.1f}x" if gain else "-", "bold cyan"),
        cell("left", format_seconds(snapshot.left_s)),
    )
    bar = ProgressBar(total=snapshot.trials or 1, completed=snapshot.measured, width=60)
    title = Text.assemble((snapshot.job, "bold"), f" {snapshot.target}".rstrip())
    phase = Text(
        f"{_phase(snapshot)}  {format_seconds(snapshot.elapsed_s)}",
        style="bold",
    )
    body = Table.grid()
    for part in (phase, bar, grid):  # a bar alone does not end its line
        body.add_row(part)
    return Panel(body, title=title, title_align="left", box=box.ROUNDED, width=84)
