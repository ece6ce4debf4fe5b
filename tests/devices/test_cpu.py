"""What the kernel tells of processors."""

from __future__ import annotations

from pathlib import Path

from tunefarm.devices.cpu import one_of_each_core


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for number, siblings in enumerate(("0,4", "1,5", "2", "3", "0,4", "1,5")):
        place = tmp_path / f"cpu{number}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(siblings + "\n")
    assert one_of_each_core({5, 4, 1, 0, 2}, tmp_path) == [0, 1, 2]
    assert one_of_each_core({5, 4}, tmp_path) == [4, 5]
    assert one_of_each_core({7, 9}, tmp_path) == [7, 9], "of these nothing is known"
