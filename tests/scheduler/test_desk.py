"""A farm is asked at its home or at its door: the same questions, the same answers."""

from __future__ import annotations

import datetime
import hashlib
import io
import ipaddress
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import ValidationError

from tests.command import tunefarm
from tests.ports import free_port
from tunefarm.devices.device import Device
from tunefarm.errors import FarmUnreachable, TunefarmError, UsageError
from tunefarm.home import Home
from tunefarm.measure.protocol import Protocol
from tunefarm.results.facts import Job, JobTarget, Measurement
from tunefarm.results.journal import Journal
from tunefarm.scheduler import desk as desk_module
from tunefarm.scheduler.desk import Desk, HomeDesk, follow
from tunefarm.scheduler.door.client import RemoteDesk
from tunefarm.scheduler.door.server import Door, Frame, make_app, make_routes
from tunefarm.scheduler.door.wire import Submission, file_name
from tunefarm.scheduler.token import make_token

TOKEN = "0123456789abcdef" * 4
JOB = "net-0a1b2c"
DIGEST = "a" * 64


@pytest.fixture
def journal(home: Home, device: Device) -> Iterator[Journal]:
    options = {"skipped": {}, "tracking_uri": "sqlite://", "strategy": "random", "seed": 0}
    job = Job(JOB, "net", time.time(), DIGEST, "net.onnx", options, Protocol().to_dict())
    made = Journal(home)
    made.add_job(job, [JobTarget("llvm", device.target, device, "tc")])
    made.add_measurements(JOB, "llvm", [Measurement("c", "screen", 0, (1e-3,))])
    summary = {"verdict": "FASTER", "speedup": 2.0, "tuned_ms": 1.0}
    made.add_artifact(JOB, "llvm", "net", DIGEST, Path("net.tfa"), summary)
    home.job_dir(JOB).mkdir(parents=True)
    (home.job_dir(JOB) / "job.log").write_text("one line\nanother \N{GREEK SMALL LETTER MU}\n")
    yield made
    made.close()


@contextmanager
def door_of(desk: HomeDesk, certificate: Path | None = None, key: Path | None = None):
    frame = Frame("127.0.0.1", free_port(), certificate, key)
    door = Door(make_app(desk, TOKEN), frame)
    try:
        yield frame.url
    finally:
        door.close()


@pytest.fixture
def url(home: Home, journal: Journal) -> Iterator[str]:
    with door_of(HomeDesk(home)) as found:
        yield found


@pytest.fixture(params=["home", "door"])
def desk(request: pytest.FixtureRequest, home: Home, journal: Journal) -> Desk:
    if request.param == "home":
        return HomeDesk(home)
    return RemoteDesk(request.getfixturevalue("url"), TOKEN)


def test_what_a_farm_says(desk: Desk) -> None:
    assert [row["job"] for row in desk.jobs()] == [JOB]
    found = desk.job("net")
    assert (found["job"], found["status"], found["counts"]["measured"]) == (JOB, "queued", 1)
    assert found["targets"]["llvm"]["verdict"] == "FASTER"
    assert desk.log(JOB)["lines"] == ["one line", "another \N{GREEK SMALL LETTER MU}"]
    assert [(row["name"], row["digest"]) for row in desk.artifacts()] == [("net", DIGEST)]


@pytest.mark.parametrize("wanted", ["nothing", "../journal", "a/b", "%2e%2e", "\N{SNOWMAN}"])
def test_an_unknown_job_is_named(desk: Desk, wanted: str) -> None:
    for question in (desk.job, desk.log, desk.cancel, desk.resume):
        with pytest.raises(TunefarmError, match="no job") as told:
            question(wanted)
        assert told.value.exit_code == 5
        assert JOB in told.value.hint, "what there is"


def test_a_job_is_ended_once(desk: Desk, journal: Journal) -> None:
    assert desk.cancel("net") == {"job": JOB, "status": "cancelled"}
    assert journal.status(JOB) == "cancelled"
    with pytest.raises(TunefarmError, match="has ended already"):
        desk.cancel("net")
    with pytest.raises(TunefarmError, match="nothing to resume"):
        desk.resume("net")


class Unsteady:
    """A desk that is out of reach every other time."""

    def __init__(self, desk: Desk) -> None:
        self._desk, self._asked = desk, 0

    def job(self, wanted: str) -> dict:
        self._asked += 1
        if self._asked % 2 == 0:
            raise FarmUnreachable("a hiccup")
        return self._desk.job(wanted)


def test_a_job_is_followed_to_its_end(desk: Desk, journal: Journal) -> None:
    seen = []

    def say(found: dict) -> None:
        seen.append(found["status"])
        journal.add_event(JOB, "failed", error="it broke", exit_code=3)

    found = follow(Unsteady(desk), JOB, 0.01, say)
    assert seen == ["queued", "failed"]
    assert (found["error"], found["exit_code"]) == ("it broke", 3)


@pytest.mark.tvm
def test_the_devices(desk: Desk, home: Home) -> None:
    (row,) = desk.devices()
    assert row["standing"]["use"] == "free"
    assert row["noise"] is None
    assert row["load_1m"] >= 0


# ------------------------------------------------------------------------------- the door alone


def test_no_endpoint_without_the_token(url: str, home: Home) -> None:
    routes = make_routes(HomeDesk(home)).routes
    paths = {(method, route.path) for route in routes for method in getattr(route, "methods", ())}
    assert len(paths) >= 11
    nowhere = {("GET", "/"), ("GET", "/docs"), ("PATCH", "/v1/jobs"), ("POST", "/v1/nothing")}
    for method, path in paths | nowhere:
        where = url + path.format(digest=DIGEST, file="m.onnx")
        about = {"wanted": JOB, "name": "net"}
        for shown in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            options = {"params": about, "headers": shown, "data": b"{", "timeout": 10}
            answer = requests.request(method, where, **options)
            assert answer.status_code == 401, (method, path)
            assert not answer.text
    shown = {"Authorization": f"Bearer {TOKEN}"}
    for path in ("/", "/docs", "/openapi.json"):
        assert requests.get(url + path, headers=shown, timeout=10).status_code == 404
    with pytest.raises(FarmUnreachable, match="does not know this token"):
        RemoteDesk(url, "wrong").jobs()


@pytest.mark.parametrize("token", ["", "short"])
def test_a_token_that_is_none_opens_no_door(home: Home, token: str) -> None:
    with pytest.raises(UsageError, match="characters"):
        make_app(HomeDesk(home), token)


def test_a_token_is_made_once_and_whole(home: Home) -> None:
    path = make_token(home.root / "door.token")
    made = path.read_text()
    assert len(made) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert make_token(path).read_text() == made
    assert [one.name for one in home.root.iterdir() if "token" in one.name] == ["door.token"]


@pytest.mark.slow
def test_nobody_there(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(FarmUnreachable, match="cannot be reached"):
            RemoteDesk(address, TOKEN).jobs()
        refused = tunefarm("jobs", "--farm", address, "--json", TUNEFARM_HOME=str(tmp_path))
        assert refused.code == 2, "no token"
        token = tmp_path / "door.token"
        token.write_text(TOKEN)
        refused = tunefarm("jobs", "--farm", address, "--json", TUNEFARM_HOME=str(tmp_path))
        assert refused.code == 5
        assert refused.json["exit_code"] == 5


def test_a_port_that_is_taken(home: Home) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        frame = Frame("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(FarmUnreachable, match="nothing can listen"):
            Door(make_app(HomeDesk(home), TOKEN), frame)


def test_a_model_travels_once_and_whole(url: str, home: Home) -> None:
    desk = RemoteDesk(url, TOKEN)
    data = bytes(range(256)) * 20_000
    digest = hashlib.sha256(data).hexdigest()
    assert desk.send(io.BytesIO(data), digest, "m.onnx")
    assert not desk.send(io.BytesIO(data), digest, "m.onnx"), "it is there"
    assert (home.models / digest / "m.onnx").read_bytes() == data
    with pytest.raises(TunefarmError, match="not what was announced"):
        desk.send(io.BytesIO(data[:-1]), DIGEST, "m.onnx")
    assert not (home.models / DIGEST).exists(), "nothing half-written"


def test_a_model_that_was_not_sent(url: str) -> None:
    with pytest.raises(TunefarmError, match="has not been sent"):
        RemoteDesk(url, TOKEN).submit(Submission(model=DIGEST, file="m.onnx"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "../../etc"},
        {"file": "../m.onnx"},
        {"file": "-rf"},
        {"trials": 0},
        {"layout": "NCWH"},
        {"farm": "elsewhere"},
        {"shapes": [("x", [0])]},
    ],
)
def test_a_submission_has_a_schema(url: str, wrong: dict) -> None:
    asked = {"model": DIGEST, "file": "m.onnx", **wrong}
    with pytest.raises(ValidationError):
        Submission(**asked)
    answer = requests.post(
        f"{url}/v1/jobs", json=asked, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=10
    )
    assert answer.status_code == 422


def test_no_value_passes_for_an_option() -> None:
    wanted = Submission(
        model=DIGEST, file="m.onnx", targets="--farm", name="--token=x", retune=True
    )
    assert all(one.startswith("--") and "\n" not in one for one in wanted.arguments())
    assert "--targets=--farm" in wanted.arguments()
    assert "--name=--token=x" in wanted.arguments()
    assert wanted.arguments()[-1] == "--retune"


def test_what_a_command_has_said_counts_however_it_leaves(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's native threads may fall as it leaves a farm, when all is done."""

    def says(text: str) -> None:
        code = f"print({text!r}, flush=True); import os; os.abort()"
        monkeypatch.setattr(desk_module, "_command", lambda _: [sys.executable, "-c", code])

    says('{"job": "net-1"}')
    assert desk_module.ask_command(home, ["submit"]) == {"job": "net-1"}
    says('{"error": "no", "hint": "", "exit_code": 4}')
    with pytest.raises(TunefarmError, match="no"):
        desk_module.ask_command(home, ["submit"])


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["certificate", "key"])
def test_a_certificate_that_is_none_is_refused_before_anything_starts(
    home: Home, tmp_path: Path, wrong: str
) -> None:
    pair = dict(zip(("certificate", "key"), self_signed(tmp_path), strict=True))
    pair[wrong].write_text("no PEM")
    options = [word for name, file in pair.items() for word in (f"--{name}", file)]
    done = tunefarm("up", *options, TUNEFARM_HOME=str(home.root))
    assert done.code == 2
    assert "cannot be used" in done.err
    assert "Traceback" not in done.err


def test_names_of_files() -> None:
    assert file_name("r\N{LATIN SMALL LETTER E WITH ACUTE}s net.onnx") == "r-s-net.onnx"
    assert file_name("../../x") == "x"
    assert file_name("...") == "model.onnx"
    for name in ("\N{SNOWMAN}.onnx", "_x.onnx", "a" * 300, "-rf", "a-" * 100 + ".onnx"):
        Submission(model=DIGEST, file=file_name(name))


def test_tls(home: Home, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    with door_of(HomeDesk(home), certificate, key) as url:
        assert url.startswith("https://")
        with pytest.raises(FarmUnreachable, match="certificate"):
            RemoteDesk(url, TOKEN).jobs()
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        assert [row["job"] for row in RemoteDesk(url, TOKEN).jobs()] == [JOB]


def self_signed(place: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "farm")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = place / "farm.crt", place / "farm.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files
