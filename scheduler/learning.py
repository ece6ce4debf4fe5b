"""What a job takes from earlier ones and leaves to later ones: the farm's cost model."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from tunefarm.costmodel.transfer import Transfer, read_about, train
from tunefarm.errors import StoreError
from tunefarm.home import Home, write_atomically
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.results.lessons import home_lessons, lessons_of, lessons_path, write_lessons
from tunefarm.search.proposer import Taught

TRAIN_LIMIT_S = 120.0


def begin(home: Home, job: Job) -> tuple[Path | None, str]:
    """The cost model that `job` starts from, as it was when the job first began (a resumed job
    goes on with the same, or without any), and a line that says so; None for none."""
    if not job.options.get("transfer"):
        return None, ""
    path = home.job_dir(job.id) / "costmodel.json"
    try:
        if not path.exists():
            if home.costmodel.exists():
                write_atomically(path, home.costmodel.read_bytes())
            else:
                Transfer().save(path)
        about = read_about(path)
    except (StoreError, OSError) as error:
        reason = error.message if isinstance(error, StoreError) else str(error)
        return None, f"{reason}; going on without it"
    if not about.get("kept"):
        return None, ""
    return path, (
        f"starting from a cost model of {about['networks']} networks, {about['lessons']} results"
    )


def leave(
    home: Home, journal: Journal, job: Job, target: JobTarget, taught: Collection[Taught]
) -> None:
    """Write down what a target's search has taught.

    Raises:
        OSError: it cannot be written.
    """
    lessons = lessons_of(journal, job, target, taught)
    if lessons:
        write_lessons(lessons_path(home, job.id, target.name), lessons)


def learn(home: Home) -> str:
    """Train the farm's cost model on all lessons, in a child; a line that says what came of it.

    What two jobs that end at once have taught is in the model of whoever trains last, or, at the
    latest, in that of the next job.
    """
    try:
        with Child("tunefarm.scheduler.learning:train_home", torch=True) as child:
            return str(child.call(home.root, TRAIN_LIMIT_S))
    except (ChildTimeout, ChildDied, ChildError, OSError) as error:
        return f"the cost model could not be trained: {error}"


def train_home(root: Path) -> str:
    """Runs in the child, and after others: the next job may be measuring by now."""
    os.nice(19)
    home = Home(root)
    lessons = home_lessons(home)
    if not lessons:
        return ""
    model, _ = train(lessons)
    model.save(home.costmodel)
    kept = ", ".join(model.about["kept"]) or "nothing yet that helps"
    return f"cost model trained on {len(lessons)} results: {kept}"
