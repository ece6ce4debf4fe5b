"""Reading an artifact that somebody else made: its parts, its digests, its fit to this host.

Standard library only: this is what runs on a machine that has no tuner.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tunefarm.devices import cpu
from tunefarm.devices.gpu_driver import gpu_misfits
from tunefarm.errors import ArtifactError, ArtifactIncompatible, ArtifactTampered
from tunefarm.frontend.dtypes import ROUGH
from tunefarm.home import write_atomically
from tunefarm.measure.bundles.archive import UNREADABLE
from tunefarm.results import pieces
from tunefarm.results.manifest import LIBRARY, read_manifest

MANIFEST = "manifest.json"
_CHUNK = 1 << 20
_LOCAL_HEADER = 30
"""Bytes of what stands before a part's name in a zip file."""


@dataclass(frozen=True)
class Artifact:
    """An artifact whose manifest has been read; `digest` is the manifest's SHA-256."""

    path: Path
    digest: str
    manifest: dict[str, Any]

    def read(self, name: str) -> bytes:
        """One part, checked against the manifest.

        Raises:
            ArtifactTampered: its bytes are not the ones listed, or it is not listed.
        """
        data = _read_part(self.path, name, self._length(name))
        self._check(name, data)
        return data

    def read_into(self, name: str, memory: memoryview) -> None:
        """One part, as long as `memory`, into it, checked against the manifest; by pieces
        (`results.pieces`) where it has them and lies in its file as it is.

        Raises:
            ArtifactTampered: as `read`.
        """
        self._length(name)
        count = 0
        known = pieces.listed(self.manifest["files"][name], len(memory))
        try:
            if known is not None and (place := _stored(self.path, name)) is not None:
                with place.file:
                    if place.size == len(memory):
                        descriptor = place.file.fileno()
                        if not pieces.read(descriptor, place.offset, memory, *known):
                            raise self._altered(name)
                        return
            with _opened(self.path, name) as file:
                while part := file.read(min(_CHUNK, len(memory) - count)):
                    memory[count : count + len(part)] = part
                    count += len(part)
                longer = bool(file.read(1))
        except UNREADABLE as error:
            raise _unreadable(self.path, name, error) from None
        if longer:
            raise _too_long(self.path, name)
        self._check(name, memory[:count])

    def check(self, name: str) -> None:
        """Look at one part, whole and by its pieces; little of it is in memory at a time.

        Raises:
            ArtifactTampered: as `read`, or a piece is not the one listed.
        """
        size, entry = self._length(name), self.manifest["files"][name]
        known = pieces.listed(entry, size)
        try:
            with _opened(self.path, name) as file:
                found, whole, parts = pieces.digested(file, size, known[0] if known else _CHUNK)
        except UNREADABLE as error:
            raise _unreadable(self.path, name, error) from None
        if found > size:
            raise _too_long(self.path, name)
        if whole != entry["sha256"]:
            raise self._altered(name)
        if known is not None and parts != known[1]:
            raise ArtifactTampered(f"{self.path}: {name} is not made up of its pieces")

    def _length(self, name: str) -> int:
        """Bytes of a part, as listed."""
        listed = self.manifest["files"].get(name)
        if listed is None:
            raise ArtifactTampered(f"{self.path}: {name} is not in its manifest")
        return int(listed["bytes"])

    def _check(self, name: str, data: bytes | memoryview) -> None:
        if hashlib.sha256(data).hexdigest() != self.manifest["files"][name]["sha256"]:
            raise self._altered(name)

    def _altered(self, name: str) -> ArtifactTampered:
        return ArtifactTampered(
            f"{self.path}: {name} does not have the digest that its manifest lists",
            hint="Do not use it; pull the artifact again.",
        )


def open_artifact(path: Path) -> Artifact:
    """Read the manifest of a packed artifact or of an unpacked directory.

    Raises:
        ArtifactError: no such file.
        ArtifactTampered: not an artifact, cut short, or with a manifest that makes no sense.
        ArtifactIncompatible: a newer tunefarm's.
    """
    if not path.exists():
        raise ArtifactError(f"there is no artifact {path}")
    data = _read_part(path, MANIFEST, 64 * 2**20)
    return Artifact(path, hashlib.sha256(data).hexdigest(), read_manifest(data, str(path)))


def _read_part(path: Path, name: str, limit: int) -> bytes:
    """At most `limit` bytes of one part; more is refused."""
    try:
        with _opened(path, name) as file:
            data = file.read(limit + 1)
    except UNREADABLE as error:
        raise _unreadable(path, name, error) from None
    if len(data) > limit:
        raise _too_long(path, name)
    return data


@contextlib.contextmanager
def _opened(path: Path, name: str) -> Iterator[IO[bytes]]:
    """One part of an artifact, packed or not."""
    if path.is_dir():
        with _file_in(path, name).open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive, archive.open(name) as part:
        yield part


def _file_in(path: Path, name: str) -> Path:
    """A part of an unpacked artifact: nothing that leads elsewhere, or waits."""
    if (path / name).is_symlink() or not (path / name).is_file():
        raise ArtifactTampered(f"{path}: {name} is not a file")
    return path / name


@dataclass(frozen=True)
class _Stored:
    """Where the bytes of a part lie, as they are, in an open file."""

    file: IO[bytes]
    offset: int
    size: int


def _stored(path: Path, name: str) -> _Stored | None:
    """None of one that is compressed."""
    if path.is_dir():
        file = _file_in(path, name).open("rb")
        return _Stored(file, 0, os.fstat(file.fileno()).st_size)
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(name)
    encrypted = entry.flag_bits & 1
    if entry.compress_type != zipfile.ZIP_STORED or encrypted:
        return None
    file = path.open("rb")
    try:
        file.seek(entry.header_offset)
        head = file.read(_LOCAL_HEADER)
        if len(head) < _LOCAL_HEADER or head[:4] != b"PK\x03\x04":
            raise zipfile.BadZipFile(f"{name} does not lie where the list of parts says")
    except BaseException:
        file.close()
        raise
    lengths = (int.from_bytes(head[at : at + 2], "little") for at in (26, 28))  # name, extra
    return _Stored(file, entry.header_offset + _LOCAL_HEADER + sum(lengths), entry.file_size)


def _too_long(path: Path, name: str) -> ArtifactTampered:
    return ArtifactTampered(f"{path}: {name} is larger than its manifest says")


def _unreadable(path: Path, name: str, error: Exception) -> ArtifactTampered:
    return ArtifactTampered(
        f"{path}: {name} cannot be read ({type(error).__name__}: {error})",
        hint="The file is not an artifact, or is damaged; pull it again.",
    )


def _parts(path: Path) -> list[str]:
    if path.is_dir():
        return [str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir()]
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except UNREADABLE as error:
        raise _unreadable(path, "its list of parts", error) from None
    if min(entry.header_offset for entry in entries):
        raise ArtifactTampered(f"{path}: something lies before its first part")
    return [entry.filename for entry in entries]


def file_digest(path: Path) -> str:
    """SHA-256, as manifests list it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(artifact: Artifact) -> list[str]:
    """Read every part; the names of those that are sound.

    Raises:
        ArtifactTampered: a part is missing, changed, there twice, or not in the manifest.
    """
    parts, listed = _parts(artifact.path), {*artifact.manifest["files"], MANIFEST}
    if extra := sorted(set(parts) - listed):
        raise ArtifactTampered(f"{artifact.path}: not in its manifest: {', '.join(extra)}")
    if twice := sorted(name for name, count in Counter(parts).items() if count > 1):
        raise ArtifactTampered(f"{artifact.path}: there more than once: {', '.join(twice)}")
    for name in artifact.manifest["files"]:
        artifact.check(name)
    return sorted(artifact.manifest["files"])


def misfits(manifest: dict[str, Any]) -> list[str]:
    """Why this host cannot run the artifact; empty when it can."""
    host = manifest["requires"]
    found = []
    if host["os"] != sys.platform:
        found.append(f"it is for {host['os']}, this is {sys.platform}")
    if host["machine"] != platform.machine():
        found.append(f"it is for {host['machine']} processors, this is {platform.machine()}")
        return found
    missing = sorted(set(host["cpu_features"]) - set(cpu.cpu_features()))
    if lacks := [one for one in missing if not cpu.is_lent(one)]:
        found.append(f"this processor lacks {', '.join(lacks)}")
    if lent := [one for one in missing if cpu.is_lent(one)]:
        found.append(
            f"this processor lacks {', '.join(lent)}, or the system does not lend it to processes"
        )
    if "gpu" in host:
        found += gpu_misfits(host["gpu"]["arch"], host["gpu"]["cuda"])
    runtime = _runtime_version()
    if runtime is None:
        found.append(f"the TVM runtime is not installed (it needs {host['tvm_runtime']})")
    elif release(runtime) != release(host["tvm_runtime"]):
        found.append(f"it needs the TVM runtime {host['tvm_runtime']}, here is {runtime}")
    return found


def rounded_to(manifest: dict[str, Any]) -> str:
    """What its job allowed factors of float32 products to be rounded to, and some are; "" for
    nothing."""
    allowed = str(manifest["target"].get("precision", ""))
    return allowed if allowed in ROUGH and allowed == manifest.get("computed_in") else ""


def _runtime_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("apache-tvm")
    except PackageNotFoundError:
        return None


def release(version: str) -> tuple[str, ...]:
    """What of a version of the runtime has to be the same."""
    return tuple(version.split(".")[:2])


def require_fit(artifact: Artifact) -> None:
    """Raises:
    ArtifactIncompatible: with everything that does not fit.
    """
    found = misfits(artifact.manifest)
    if found:
        raise ArtifactIncompatible(
            f"{artifact.path} does not fit this host: {'; '.join(found)}",
            hint="Tune the model for this host's target, or run it where it fits.",
        )


@contextlib.contextmanager
def unpacked_library(artifact: Artifact) -> Iterator[Path]:
    """The model's library as a file named by its digest, checked on every use, to be loaded inside.

    It lies in ``TUNEFARM_CACHE`` (by default the user's cache directory): a library must not be
    rewritten at a path from which it may have been loaded. Where that cannot be written, it is a
    file that is gone afterwards.

    Raises:
        ArtifactIncompatible: there is no room for it.
    """
    data = artifact.read(LIBRARY)
    base = os.environ.get("TUNEFARM_CACHE") or os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path.home() / ".cache"
    path = root / "tunefarm" / f"{artifact.manifest['files'][LIBRARY]['sha256']}.so"
    if _holds(path, data):
        yield path
        return
    with contextlib.ExitStack() as gone:
        try:
            file = tempfile.NamedTemporaryFile(prefix="tunefarm-", suffix=".so")  # noqa: SIM115
            gone.enter_context(file)
            file.write(data)
            file.flush()
        except OSError as error:
            raise ArtifactIncompatible(f"{artifact.path}: no room to unpack: {error}") from None
        yield Path(file.name)


def _holds(path: Path, data: bytes) -> bool:
    """Whether the file holds just this, as it did, or does now."""
    try:
        if not (path.exists() and path.read_bytes() == data):
            write_atomically(path, data)
    except OSError:  # another user's, or no room
        return False
    return True
