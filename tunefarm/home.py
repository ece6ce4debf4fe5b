"""Where a farm keeps its things: the layout of ``TUNEFARM_HOME``.

journal.db            the durable record (SQLite; or PostgreSQL at ``TUNEFARM_JOURNAL``)
mlflow.db, mlruns/    MLflow's embedded store and its files
devices/              one JSON file per registered device, and its standing where it has one
roofs/                what each kind of device can do at best
costmodel.json        what earlier jobs teach later ones
jobs/<job>/           report.html, job.log, costmodel.json (as it was when the job began), and for
                      each target program/, candidates/, reference/, model/, lessons.parquet
benches/              one directory per `tunefarm bench`: bench.json, raw.json, bench.png
zoo/                  networks that `tunefarm bench --model-zoo` runs
models/<digest>/      models that came through the farm's door
artifacts/            packed artifacts, <name>-<target>-<digest>.tfa
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tunefarm.errors import StoreError


@dataclass(frozen=True)
class Home:
    """Paths inside one farm home. Directories are made on demand by `job_dir` and `prepare`."""

    root: Path

    @classmethod
    def from_environment(cls) -> Home:
        default = Path.home() / ".tunefarm"
        return cls(Path(os.environ.get("TUNEFARM_HOME") or default).expanduser().absolute())

    def prepare(self) -> Home:
        """Make the home and prove that it can be written.

        Raises:
            StoreError: it cannot be made or written.
        """
        if "?" in str(self.root):  # which begins something else in a database's address
            raise StoreError(
                f"the farm home {self.root} has a question mark in its name",
                hint="Set TUNEFARM_HOME to a directory without.",
            )
        try:
            for path in (self.root, self.devices, self.jobs, self.artifacts):
                path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root) as probe:
                probe.write(b"tunefarm")
        except OSError as error:
            raise StoreError(
                f"the farm home {self.root} cannot be written: {error.strerror or error}",
                hint="Set TUNEFARM_HOME to a directory you may write, or mend its permissions.",
            ) from error
        return self

    @property
    def journal_url(self) -> str:
        """``TUNEFARM_JOURNAL`` where it is set: a farm's PostgreSQL."""
        return os.environ.get("TUNEFARM_JOURNAL") or f"sqlite:///{self.root / 'journal.db'}"

    @property
    def mlflow_uri(self) -> str:
        return f"sqlite:///{self.root / 'mlflow.db'}"

    @property
    def mlflow_files(self) -> Path:
        return self.root / "mlruns"

    @property
    def costmodel(self) -> Path:
        return self.root / "costmodel.json"

    @property
    def devices(self) -> Path:
        return self.root / "devices"

    @property
    def roofs(self) -> Path:
        return self.root / "roofs"

    @property
    def paper(self) -> Path:
        """Of GPUs of paper (`measure.cuda.emulator`)."""
        return self.root / "paper"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def benches(self) -> Path:
        return self.root / "benches"

    @property
    def zoo(self) -> Path:
        return self.root / "zoo"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def models(self) -> Path:
        return self.root / "models"

    def environment(self) -> dict[str, str]:
        """Of a process that is to work on this home, and on no farm elsewhere."""
        others = {k: v for k, v in os.environ.items() if k != "TUNEFARM_FARM"}
        return {**others, "TUNEFARM_HOME": str(self.root)}

    def job_dir(self, job: str) -> Path:
        return self.jobs / job


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part."""
    with atomically(path) as file:
        file.write(data)


@contextlib.contextmanager
def atomically(path: Path) -> Iterator[IO[bytes]]:
    """A file to be written, which becomes `path` where all goes well, and else leaves it alone. Who
    may read it, the umask says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
