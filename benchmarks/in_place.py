"""Does the budget go where the model gains? Kernels alone beside the same kernels in the model.

    python benchmarks/in_place.py HOME

For the newest job of each network in that farm home: what each kernel takes alone, by its held-out
run, and in place, by the watched inferences of the model that ships; whether the heaviest are the
same, and how much of the kernels' time would be another's if the budget went by the latter.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tunefarm.home import Home
from tunefarm.results.journal import Journal
from tunefarm.results.known import alone_and_in_place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--kernels", action="store_true", help="List them.")
    a = parser.parse_args()
    journal = Journal(Home(a.home))
    newest = {job.name: job.id for job in reversed(journal.jobs())}
    print("| network | kernels | alone ms | in place ms | share that would move | heaviest ten |")
    print("|---|---|---|---|---|---|")
    for name, job in newest.items():
        for target in journal.targets(job):
            rows = kernels(journal, job, target.name)
            said = summary(rows) if rows else ["not known"]
            print(f"| {name} | {' | '.join(said)} |")
            for row in rows if a.kernels else []:
                print(f"  {row['alone']:9.4f} {row['placed']:9.4f} ms  {row['name']}")
    journal.close()


def kernels(journal: Journal, job: str, target: str) -> list[dict[str, Any]]:
    """Heaviest first, in milliseconds of an inference; those that a held-out run has timed."""
    names = {task["task"]: task["name"] for task in journal.tasks(job, target)}
    seconds = alone_and_in_place(journal, job, target)
    rows = [
        {"name": names[task], "alone": alone * 1e3, "placed": placed * 1e3}
        for task, (alone, placed) in seconds.items()
    ]
    return sorted(rows, key=lambda row: -row["alone"])


def summary(rows: list[dict[str, Any]]) -> list[str]:
    alone, placed = (sum(row[key] for row in rows) for key in ("alone", "placed"))
    moved = sum(abs(row["alone"] / alone - row["placed"] / placed) for row in rows) / 2
    heaviest = [{id(row) for row in ordered(rows, key)[:10]} for key in ("alone", "placed")]
    common = len(heaviest[0] & heaviest[1])
    return [
        str(len(rows)),
        f"{alone:.3f}",
        f"{placed:.3f}",
        f"{moved:.1%}",
        f"{common} of {len(heaviest[0])} the same",
    ]


def ordered(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -row[key])


if __name__ == "__main__":
    main()
