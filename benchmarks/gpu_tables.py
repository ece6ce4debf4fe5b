"""What was measured on a GPU, beside PyTorch: read from reports, by Python and NumPy alone.

    python benchmarks/gpu_tables.py K N [--out OUT]

Of directories that `gpu.py` and `gpu_network.py` have built; reports on their bundles, and the
times of `gpu_rivals.py`, are where `gpu_lease.py` has put them. What has not been measured is a
dash.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where tunefarm is not installed

from tunefarm.errors import Failure
from tunefarm.measure.bundles.bundle import Report, read_bundle, read_report, report_of
from tunefarm.measure.bundles.run import PART
from tunefarm.measure.facts import Checked, ScreenOutcome
from tunefarm.measure.judge import judge
from tunefarm.measure.protocol import Protocol

KERNELS, NETWORKS_KERNELS, NETWORK = "gpu.bundle", "kernels.bundle", "network.bundle"
RIVALS = "rivals.json"
UNTUNED, PLANTED = "untuned", "planted fault"
PARTS = ("attention q k", "attention softmax", "attention p v")
"""Of attention, of which there is a row with their sum: rivals have one kernel, as we have in 16
bits."""
IN_THREE = "attention in three"
_MOST_FAILURES = 12

Rivals = dict[str, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    print(tables(given.directories, given.out))


def tables(directories: Sequence[Path], out: Path) -> str:
    """Of every bundle of `directories` that there is a report on."""
    file = out / RIVALS
    rivals = json.loads(file.read_text()) if file.exists() else {"kernels": {}}
    found = []
    for directory in directories:
        for bundle, make in ((KERNELS, _kernels), (NETWORKS_KERNELS, _tasks), (NETWORK, _network)):
            try:
                report = report_on(directory, bundle, out)
                found += list(make(directory, report, rivals)) if report is not None else []
            except Exception as error:  # whatever it is, the others' tables are to be seen
                found.append(f"{directory / bundle}: {type(error).__name__}: {error}")
    return "\n\n".join(found) if found else "nothing has been measured"


def report_on(directory: Path, bundle: str, out: Path) -> Report | None:
    """In `out`, below the directory's name, or beside the bundle; an unfinished one where there is
    no other. One on another bundle of this name is none."""
    path = directory / bundle
    if not path.exists():
        return None
    for whole in (report_of(place_in(out, directory) / bundle), report_of(path)):
        for one in (whole, whole.with_name(whole.name + PART)):
            if one.exists():
                report = read_report(one, directory / "files")
                if report.bundle == read_bundle(path).id:
                    return report
                print(f"{one} is on another bundle", file=sys.stderr)
    return None


def place_in(out: Path, directory: Path) -> Path:
    return out / directory.resolve().name


def _kernels(directory: Path, report: Report, rivals: dict[str, Any]) -> Iterator[str]:
    rows = json.loads((directory / "kernels.json").read_text())
    yield head(report, f"kernels; rivals: {rivals.get('versions', 'none')}")
    yield kernels_table(rows, report.answers, rivals["kernels"])
    yield kinds_table(rows, report.answers)
    yield failures(rows, report.answers)


def _tasks(directory: Path, report: Report, _rivals: dict[str, Any]) -> Iterator[str]:
    plan = json.loads((directory / "plan.json").read_text())
    yield head(report, f"kernels of {plan['network']} {plan['dtype']}")
    yield tasks_table(plan, report.answers)
    yield failures(plan["rows"], report.answers)


def _network(directory: Path, report: Report, rivals: dict[str, Any]) -> Iterator[str]:
    plan = json.loads((directory / "plan.json").read_text())
    planned = len(read_bundle(directory / NETWORK).requests)
    yield head(report, f"{plan['network']} {plan['dtype']}, whole")
    yield network_summary(plan, report.answers, planned, rivals["kernels"])


def head(report: Report, what: str) -> str:
    paper = ", whose times are no evidence" if report.device.is_emulated else ""
    return f"**{report.device.sku}{paper}: {what}**"


def seconds_of(answer: Any) -> float | None:
    """Of a schedule that ran and was right."""
    if isinstance(answer, ScreenOutcome) and answer.screening is not None:
        return statistics.median(answer.screening.samples)
    return None


def failure_of(answer: Any) -> Failure | None:
    return answer.failure if isinstance(answer, ScreenOutcome) else answer


@dataclass(frozen=True)
class Row:
    """A kernel's untuned time and its best, in seconds; 0 where there is none."""

    untuned_s: float
    best_s: float
    by: str
    right: int
    measured: int
    built: int

    def cells(self) -> list[str]:
        times = [f"{one * 1e6:.1f}" if one else "-" for one in (self.untuned_s, self.best_s)]
        return [*times, self.by, f"{self.right}, {self.measured}, {self.built}"]


def row_of(mine: Mapping[int, str], answers: Mapping[int, Any]) -> Row:
    """Args:
    mine: schedules of one kernel, by the number of their measurement.
    """
    times = {n: s for n in mine if (s := seconds_of(answers.get(n))) is not None}
    measured = sum(n in answers for n in mine)
    if not times:
        kinds = {failure_of(answers[n]).kind.value for n in mine if n in answers}
        return Row(0.0, 0.0, ", ".join(sorted(kinds)) or "not come to", 0, measured, len(mine))
    untuned = next((times[n] for n, how in mine.items() if how == UNTUNED and n in times), 0.0)
    best = min(times, key=lambda n: times[n])
    return Row(untuned, times[best], mine[best], len(times), measured, len(mine))


def by_kernel(rows: Sequence[dict[str, str]], key: str = "kernel") -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for number, row in enumerate(rows):
        found.setdefault(row[key], {})[number] = row["schedule"]
    return found


def kernels_table(
    rows: Sequence[dict[str, str]], answers: Mapping[int, Any], rivals: Rivals
) -> str:
    """Fastest of ours by kernel, in microseconds, and the rivals' times as ratios to it."""
    of = {name: row_of(mine, answers) for name, mine in by_kernel(rows).items()}
    for dtype in ("float16", "float32"):
        parts = [of.get(f"{part} {dtype}") for part in PARTS]
        if all(part is not None and part.best_s for part in parts):
            of[f"{IN_THREE} {dtype}"] = together([part for part in parts if part])
    names = sorted({name for times in rivals.values() for name in times})
    heads = ["kernel", "untuned us", "tuned us", "by", "right, measured, built"]
    lines = table([*heads, *(f"{name}: times our time" for name in names)])
    for kernel, row in of.items():
        times = rivals.get(kernel.replace(IN_THREE, "attention"), {})
        ratios = [
            f"{times[n] / row.best_s:.2f}" if times.get(n) and row.best_s else "-" for n in names
        ]
        lines += cells([kernel, *row.cells(), *ratios])
    planted = [n for n, row in enumerate(rows) if row["kernel"] == PLANTED and n in answers]
    if planted:
        told = failure_of(answers[planted[0]])
        after = sum(n > planted[0] and seconds_of(a) is not None for n, a in answers.items())
        said = f"told ({in_short(told)})" if told else "NOT TOLD"
        lines.append(f"\nThe planted fault: {said}; {after} measurements after it went well.")
    return "\n".join(lines)


def together(parts: Sequence[Row]) -> Row:
    return Row(
        sum(part.untuned_s for part in parts),
        sum(part.best_s for part in parts),
        "the three together",
        sum(part.right for part in parts),
        sum(part.measured for part in parts),
        sum(part.built for part in parts),
    )


def kinds_table(rows: Sequence[dict[str, str]], answers: Mapping[int, Any]) -> str:
    """Fastest of each kind of schedule, in microseconds, with how many were right of those that
    were measured."""
    kinds = list(dict.fromkeys(row["schedule"] for row in rows if row["kernel"] != PLANTED))
    lines = table(["kernel", *(f"{kind} us" for kind in kinds)])
    for kernel, mine in by_kernel(rows).items():
        if kernel == PLANTED:
            continue
        line = [kernel]
        for kind in kinds:
            tried = [answers[n] for n, how in mine.items() if how == kind and n in answers]
            times = [s for one in tried if (s := seconds_of(one)) is not None]
            best = f"{min(times) * 1e6:.1f}" if times else "-"
            line.append(f"{best} ({len(times)}/{len(tried)})" if tried else "")
        lines += cells(line)
    return "\n".join(lines)


def failures(rows: Sequence[dict[str, str]], answers: Mapping[int, Any]) -> str:
    """What did not run, or was wrong, most frequent first."""
    told: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for number, answer in sorted(answers.items()):
        found = failure_of(answer)
        if found is None or rows[number].get("kernel") == PLANTED:
            continue
        which = (rows[number]["schedule"], found.kind.value)
        told[which] += 1
        kernel = rows[number].get("kernel") or rows[number]["task"]
        examples.setdefault(which, f"{kernel}: {in_short(found)}")
    if not told:
        return "No schedule failed."
    return "\n".join(
        f"- {how}, {kind}: {number} times, first {examples[how, kind]}"
        for (how, kind), number in told.most_common(_MOST_FAILURES)
    )


def in_short(failure: Failure) -> str:
    return next(iter(failure.message.strip().splitlines()), "")[:160]


def tasks_table(plan: dict[str, Any], answers: Mapping[int, Any]) -> str:
    lines = table(["kernel", "times", "untuned us", "tuned us", "by", "right, measured, built"])
    of = {task: row_of(mine, answers) for task, mine in by_kernel(plan["rows"], "task").items()}
    for task in plan["tasks"]:
        if task["id"] in of:
            lines += cells([task["name"], str(task["weight"]), *of[task["id"]].cells()])
    return "\n".join(lines)


def network_summary(
    plan: dict[str, Any], answers: Mapping[int, Any], planned: int, rivals: Rivals
) -> str:
    """Args:
    planned: answers of a whole run: one of the check, the others of processes.
    """
    failed = [one for one in answers.values() if isinstance(one, Failure)]
    if failed:
        return f"It did not run: {in_short(failed[0])}"
    if len(answers) < planned:
        return f"Only {len(answers)} of {planned} parts were measured: run it again."
    checked, *models = (answers[n] for n in sorted(answers))
    assert isinstance(checked, Checked)
    base, tuned = (
        {process: answer.samples[name] for process, answer in enumerate(models)}
        for name in ("base", "tuned")
    )
    found = judge(base, tuned, len(models), Protocol())
    assert found is not None
    lines = [
        f"Untuned {found.base_s * 1e3:.3f} ms, tuned {found.tuned_s * 1e3:.3f} ms: "
        f"{found.speedup:.2f} times faster ({found.low:.2f} to {found.high:.2f}), {found.verdict}; "
        f"largest error against ONNX Runtime {checked.parity.max_abs_err:.2g}"
        + ("" if checked.parity.passed else ", WHICH IS TOO MUCH"),
    ]
    theirs = rivals.get(f"network {plan['network']} {plan['dtype']}", {})
    lines += [f"- {rival}: {s / found.tuned_s:.2f} times our time" for rival, s in theirs.items()]
    return "\n".join(lines)


def table(heads: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]


def cells(line: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(line) + " |"]


if __name__ == "__main__":
    main()
