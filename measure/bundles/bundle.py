"""Measuring by file: what is to be measured goes out in one archive, a report comes back.

A bundle holds requests, the files that they are about and, so that it can be run by a machine with
nothing but Python and NumPy, the runtime: ``python BUNDLE`` is enough there. A report holds
answers, the files that the requests made, and which device it was. Both are checked against the
digests that they carry before anything in them is believed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from tunefarm.devices.device import Device, device_from_dict
from tunefarm.devices.target import Target, target_from_json
from tunefarm.errors import ArtifactIncompatible, ArtifactTampered
from tunefarm.measure.bundles.archive import UNREADABLE, pack
from tunefarm.measure.facts import Block
from tunefarm.measure.requests import (
    CheckRequest,
    ModelRequest,
    PlaceRequest,
    RaceRequest,
    ScreenRequest,
)
from tunefarm.measure.wire import WireError, from_wire, to_wire

BUNDLE_SCHEMA, REPORT_SCHEMA = 4, 3
BUNDLE, REPORT = "bundle.json", "report.json"
FILES, RUNTIME = "files/", "runtime/"
_MOST_IN_REPORT = 4 * 2**30
"""Bytes of all its files."""
_MOST_IN_DOCUMENT = 256 * 2**20

REQUESTS = (ScreenRequest, RaceRequest, PlaceRequest, ModelRequest, CheckRequest)
"""What a bundle may ask for."""


@dataclass(frozen=True)
class Bundle:
    """What is to be measured.

    Attributes:
        id: of its content.
        job: whose directory the requests' files lie in.
        target: what the libraries were built for.
        device: fingerprint of the kind of device that is to run it; empty for whichever fits.
        requests: by number, as on the wire.
        digests: SHA-256 of every file.
        returns: whether what the requests make comes home with the report: a job's later bundles
            need it.
    """

    id: str
    job: str
    target: Target
    device: str
    requests: tuple[Any, ...]
    digests: Mapping[str, str]
    about: Mapping[str, Any] = field(default_factory=dict)
    returns: bool = True


@dataclass(frozen=True)
class Report:
    """What came of it.

    Attributes:
        bundle: the bundle's id.
        device: that ran it.
        answers: by number of the request; one that is not there was not come to.
        blocks: by number of the request that each began with.
        files: by path below the job's directory.
    """

    bundle: str
    device: Device
    answers: Mapping[int, Any]
    blocks: Mapping[int, Block]
    files: Mapping[str, bytes]


def write_bundle(
    path: Path,
    job: str,
    target: Target,
    device: str,
    requests: Sequence[Any],
    root: Path,
    files: Sequence[Path],
    runtime: Mapping[str, Path] | None = None,
    about: Mapping[str, Any] | None = None,
    returns: bool = True,
) -> Bundle:
    """Write it whole, or not at all.

    Args:
        requests: see `wire`; `files`: that they read, below `root`.
        runtime: by path in the archive's runtime; None for a machine that has tunefarm.
        returns: see `Bundle`.
    """
    named = {one.relative_to(root).as_posix(): one for one in dict.fromkeys(files)}
    digests = {name: _digest_of(one) for name, one in sorted(named.items())}
    document = {
        "schema": BUNDLE_SCHEMA,
        "job": job,
        "target": json.loads(target.to_json()),
        "device": device,
        "requests": [to_wire(one, root) for one in requests],
        "files": digests,
        "about": dict(about or {}),
        "returns": returns,
    }
    text = json.dumps(document, sort_keys=True, indent=1)
    number = _digest(text.encode())[:16]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.write_bytes(_packed(tuple(sorted((runtime or {}).items()))))
        with zipfile.ZipFile(temporary, "a", zipfile.ZIP_DEFLATED) as archive:
            pack(archive, BUNDLE, text.encode())
            # By what is in them: two libraries of one model have the same weights.
            for digest, one in sorted({digests[name]: one for name, one in named.items()}.items()):
                pack(archive, FILES + digest, one)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return _bundle(document, number)


@lru_cache(maxsize=1)
def _packed(runtime: tuple[tuple[str, Path], ...]) -> bytes:
    """An archive of the runtime alone, by path in it: a second to make, and the same in every
    bundle of a job."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, one in runtime:
            prefix = "" if name == "__main__.py" else RUNTIME
            pack(archive, prefix + name, one)
    return made.getvalue()


def _digest_of(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _bundle(document: dict[str, Any], number: str) -> Bundle:
    """
    Raises:
        ValueError, KeyError, TypeError, AttributeError: it makes no sense.
    """
    files = document["files"]
    if not all(isinstance(word, str) for pair in files.items() for word in pair):
        raise ValueError("files that are no names and digests")
    return Bundle(
        number,
        document["job"],
        target_from_json(json.dumps(document["target"])),
        document["device"],
        tuple(document["requests"]),
        document["files"],
        document["about"],
        document["returns"],
    )


def read_bundle(path: Path) -> Bundle:
    """What it says; its files are not looked at yet.

    Raises:
        ArtifactTampered: it is no bundle.
        ArtifactIncompatible: it is of another version.
    """
    text = _member(path, BUNDLE, "measurement bundle")
    needed = {"job", "target", "device", "requests", "files", "about", "returns"}
    document = _document(path, text, needed, BUNDLE_SCHEMA)
    try:
        return _bundle(document, _digest(text)[:16])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactTampered(f"{path} makes no sense: {error!r}") from error


def unpack_files(path: Path, bundle: Bundle, root: Path) -> tuple[Any, ...]:
    """Put its files below `root`; the requests about them.

    Raises:
        ArtifactTampered: a file is not the one that was put in, or a request is none.
    """
    name = BUNDLE
    try:
        with zipfile.ZipFile(path) as archive:  # once: opening it reads the list of its files
            for name, digest in bundle.digests.items():
                _unpack(archive, name, digest, root)
    except UNREADABLE as error:
        raise ArtifactTampered(f"{path}: {name} cannot be read: {error}") from error
    try:
        requests = tuple(from_wire(one, root) for one in bundle.requests)
    except (WireError, TypeError, ValueError, RecursionError) as error:
        raise ArtifactTampered(f"{path}: {error}") from error
    for one in requests:
        if not isinstance(one, REQUESTS):
            raise ArtifactTampered(f"{path}: a {type(one).__name__} is no request")
    return requests


def _unpack(archive: zipfile.ZipFile, name: str, digest: str, root: Path) -> None:
    place = root / name
    if not place.resolve().is_relative_to(root.resolve()):
        raise ArtifactTampered(f"{archive.filename}: {name!r} is not below its job")
    place.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(FILES + digest) as packed, place.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    with place.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise ArtifactTampered(f"{archive.filename}: {name} is not the file that was put in")


def write_report(path: Path, report: Report, root: Path) -> None:
    """Write it whole, or not at all; the answers' paths are below `root`."""
    document = {
        "schema": REPORT_SCHEMA,
        "bundle": report.bundle,
        "device": report.device.to_dict(),
        "answers": {str(n): to_wire(answer, root) for n, answer in report.answers.items()},
        "blocks": {str(n): to_wire(block, root) for n, block in report.blocks.items()},
        "files": {name: _digest(data) for name, data in sorted(report.files.items())},
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            pack(archive, REPORT, json.dumps(document, sort_keys=True, indent=1).encode())
            for name, data in sorted(report.files.items()):
                pack(archive, FILES + name, data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_report(path: Path, root: Path) -> Report:
    """With its answers' paths below `root`.

    Raises:
        ArtifactTampered: it is no report, or a file in it is not the one that was put in.
        ArtifactIncompatible: it is of another version.
    """
    text = _member(path, REPORT, "report of measurements")
    document = _document(
        path, text, {"bundle", "device", "answers", "blocks", "files"}, REPORT_SCHEMA
    )
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(one.file_size for one in archive.infolist()) > _MOST_IN_REPORT:
                raise ValueError(f"it says that it has more than {_MOST_IN_REPORT} bytes")
            files = {name: archive.read(FILES + name) for name in document["files"]}
        for name, data in files.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"{name!r} is not below its job")
            if _digest(data) != document["files"][name]:
                raise ValueError(f"{name} is not the file that was put in")
        return Report(
            str(document["bundle"]),
            device_from_dict(document["device"]),
            {int(n): from_wire(answer, root) for n, answer in document["answers"].items()},
            {int(n): _block(block, root) for n, block in document["blocks"].items()},
            files,
        )
    except (*UNREADABLE, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactTampered(f"{path}: {error}") from error


def _block(data: Any, root: Path) -> Block:
    found = from_wire(data, root)
    if not isinstance(found, Block):
        raise ValueError("a block of measurements is none")
    return found


def _document(path: Path, text: bytes, needed: set[str], schema: int) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(text)
        found = document.get("schema")
        lacking = needed - set(document)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactTampered(f"{path}: {error}") from error
    if found is not None and found != schema:
        raise ArtifactIncompatible(f"{path} is of version {found}, this tunefarm reads {schema}")
    if found is None or lacking:
        raise ArtifactTampered(f"{path}: it lacks {', '.join(sorted(lacking)) or 'its version'}")
    return document


def _member(path: Path, name: str, what: str) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(name).file_size > _MOST_IN_DOCUMENT:
                raise ValueError(f"{name} says that it has more than {_MOST_IN_DOCUMENT} bytes")
            return archive.read(name)  # which reads no more than it said
    except FileNotFoundError:
        raise ArtifactTampered(f"there is no file {path}") from None
    except UNREADABLE as error:
        raise ArtifactTampered(f"{path} is no {what}: {error}") from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def report_of(bundle: Path) -> Path:
    """Where the report on a bundle lies: where ``python BUNDLE`` puts it."""
    return bundle.with_name(bundle.name + ".report")
