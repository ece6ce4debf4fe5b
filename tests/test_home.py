"""A farm's home, and files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tunefarm.errors import StoreError
from tunefarm.home import Home, atomically, write_atomically


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_who_may_read_a_file_the_umask_says(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "a.tfa", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a.tfa").stat().st_mode & 0o777 == mode


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 240)
    write_atomically(path, b"old")
    with pytest.raises(TypeError), atomically(path) as file:
        file.write("no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_home_that_a_database_could_not_find_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="question mark"):
        Home(tmp_path / "a?b").prepare()
    assert list(tmp_path.iterdir()) == []
