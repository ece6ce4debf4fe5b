"""Zip files of which equal content has equal bytes; standard library alone."""

from __future__ import annotations

import shutil
import zipfile
import zlib
from pathlib import Path

UNREADABLE = (
    OSError,
    KeyError,
    EOFError,
    RuntimeError,  # an encrypted part, or a compression method that zipfile does not know
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
    OverflowError,  # a place in the file that no file has
)
"""What reading one that somebody else made may raise."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(archive: zipfile.ZipFile, name: str, part: bytes | Path, stored: bool = False) -> None:
    """Add a part, or a file, that was always made at the same time; `stored` as it is."""
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o644 << 16
    entry.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    if isinstance(part, bytes):
        archive.writestr(entry, part)
        return
    entry.file_size = part.stat().st_size
    with part.open("rb") as source, archive.open(entry, "w") as packed:
        shutil.copyfileobj(source, packed, 1 << 20)
