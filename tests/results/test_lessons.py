from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.costmodel.lessons import Lesson
from tunefarm.errors import StoreError
from tunefarm.home import Home
from tunefarm.results.lessons import home_lessons, lessons_path, read_lessons, write_lessons

seconds = st.none() | st.floats(1e-9, 1e3)
lesson = st.builds(
    Lesson,
    st.text(max_size=8),
    st.text(max_size=8),
    st.text(max_size=8),
    st.text(max_size=8),
    st.sampled_from(["register-tile", "sketch"]),
    st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(np.array),
    seconds,
    seconds,
)


@pytest.mark.slow
@given(st.lists(lesson, min_size=1, max_size=6))
def test_lessons_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, made: list[Lesson]
) -> None:
    path = tmp_path_factory.mktemp("lessons") / "lessons.parquet"
    write_lessons(path, made)
    for before, after in zip(made, read_lessons(path), strict=True):
        assert np.array_equal(before.features, after.features)
        for name in ("network", "device", "task", "candidate", "family", "expected_s", "latency_s"):
            assert getattr(before, name) == getattr(after, name)


def one(candidate: str) -> Lesson:
    return Lesson("n", "d", "t", candidate, "sketch", np.zeros(3), None, 1e-3)


def test_a_home_has_the_lessons_of_all_its_jobs(home: Home) -> None:
    for job in ("first", "second"):
        write_lessons(lessons_path(home, job, "llvm"), [one(job)])
    damaged = lessons_path(home, "third", "llvm")
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"PAR1 and then nothing")
    assert {lesson.candidate for lesson in home_lessons(home)} == {"first", "second"}


@pytest.mark.parametrize("content", [b"", b"no table", None])
def test_a_file_without_lessons_is_said_so(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "lessons.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StoreError, match="holds no lessons"):
        read_lessons(path)
