"""Files go with requests and come back with answers, and only below their job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefarm.devices.device import Device
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.assemble import Assembled, AssembleRequest
from tunefarm.measure.build import BuildOutcome, BuildRequest, Library
from tunefarm.measure.expected import ExpectedRequest
from tunefarm.measure.facts import (
    Checked,
    ColdStart,
    Compared,
    KernelFacts,
    Raced,
    ScreenOutcome,
)
from tunefarm.measure.gate import Parity
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import (
    CheckRequest,
    ModelRequest,
    PlaceRequest,
    RaceRequest,
    ScreenRequest,
)
from tunefarm.scheduler.shipping import Depot, Site, makes, needs, relocated

X = (TensorSpec("x", (1,), "float32"),)


class Ends:
    """A driver and a worker on machines of their own, and what is fetchable between them."""

    def __init__(self, place: Path) -> None:
        self.store: dict[int, bytes] = {}
        self.fetched = 0
        self.driver, self.worker = place / "driver" / "job", place / "worker" / "job"
        self.depot = Depot(self.driver, self._put)
        self.site = Site(self.worker, self.driver, self._get)

    def _put(self, content: bytes) -> int:
        self.store[len(self.store)] = content
        return len(self.store) - 1

    def _get(self, where: int) -> bytes:
        self.fetched += 1
        return self.store[where]

    def write(self, name: str) -> Path:
        path = self.driver / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"what is in {name}")
        return path


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    return Ends(tmp_path)


def requests(root: Path, device: Device) -> list[tuple[object, object]]:
    """One of each kind, with an answer to it."""
    library = Library(root / "c.so", ((0, X[0]),), root / "prepack.so")
    facts = KernelFacts("t", X, 1.0, root / "t.npz")
    protocol = Protocol()
    build = BuildRequest(root / "t.json", device.target, "[]", root / "c.so")
    assembling = AssembleRequest(
        root / "program.json", (("f", root / "t.json"),), (), device.target, root / "m.so"
    )
    checked = Checked(root / "m.so", Parity(0.0, 0.0, True), None)
    compared = Compared({"tuned": (1.0,)}, ColdStart("tuned", 0.1, 0.2, 9), (1.0, 1.1))
    return [
        (build, BuildOutcome(library, None, 0.1)),
        (ScreenRequest(library, facts, protocol, None), ScreenOutcome(None, None)),
        (ScreenRequest(library, facts, protocol, None, True), ScreenOutcome(None, None)),
        (
            RaceRequest(((facts, (("c", library),)),), protocol, 1, 0),
            Raced({"t": {"c": (1.0,)}}, {}),
        ),
        (assembling, Assembled(root / "m.so", 0, 1, 0)),
        (ExpectedRequest(root / "model.onnx", X, 2, (1, 2), root / "e.npz"), root / "e.npz"),
        (PlaceRequest((root / "v0.so",), X, protocol, 0), [{"f": [1.0]}]),
        (ModelRequest(root / "b.so", root / "m.so", X, protocol, 0), compared),
        (ModelRequest(None, root / "m.so", X, protocol, 1, root / "p.so"), compared),
        (CheckRequest((root / "m.so",), (), root / "e.npz", X, protocol), checked),
    ]


@pytest.mark.parametrize("kind", range(10))
def test_a_request_is_there_and_back_with_its_files(ends: Ends, device: Device, kind: int) -> None:
    request, answer = requests(ends.driver, device)[kind]
    for path in needs(request):
        ends.write(str(path.relative_to(ends.driver)))
    there = ends.site.unpack(request, ends.depot.parcels(request))
    assert there != request
    for path in needs(there):
        assert path.read_text() == f"what is in {path.name}"
        assert path.is_relative_to(ends.worker)
    answered = relocated(answer, ends.driver, ends.worker)
    for path in makes(there, answered):
        path.write_text("made")
    back, files = ends.site.pack(there, answered)
    assert back == answer
    made = makes(request, answer)
    for path in made:
        path.unlink(missing_ok=True)
    ends.depot.receive(files)
    assert all(path.read_text() == "made" for path in made)


def test_a_file_is_sent_once(ends: Ends, device: Device) -> None:
    request, _ = requests(ends.driver, device)[0]
    ends.write("t.json")
    for _ in range(3):
        ends.site.unpack(request, ends.depot.parcels(request))
    assert len(ends.store) == ends.fetched == 1


@pytest.mark.parametrize("name", ["../other/x", "/etc/x", "a/../../x"])
def test_nothing_is_written_outside_of_the_job(ends: Ends, name: str) -> None:
    ends.driver.mkdir(parents=True)
    with pytest.raises(ValueError, match="not below its job"):
        ends.depot.receive({name: b""})


def test_what_is_no_request_is_refused() -> None:
    with pytest.raises(TypeError, match="no request"):
        needs("canary")
