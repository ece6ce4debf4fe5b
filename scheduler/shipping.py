"""Files between machines: what a request needs goes with it, what it makes comes back.

Requests name files below the directory of their job. On the driver's machine they are used where
they lie. On any other one a worker has a copy of that directory, which fills up as requests come: a
file is sent once, for files of a job are never rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefarm.home import write_atomically
from tunefarm.measure.files import makes, needs, relocated

Parcels = Mapping[str, Any]
"""By path below the job's directory, where a file's content is to be had."""

# ---------------------------------------------------------------------------- either end


@dataclass
class Depot:
    """The driver's end.

    Args:
        root: the job's directory here.
        put: makes a content fetchable from everywhere; what is put stays until the job's end.
    """

    root: Path
    put: Callable[[bytes], Any]
    there: dict[str, Any] = field(default_factory=dict)

    def parcels(self, request: Any) -> dict[str, Any]:
        """What to send along with `request`."""
        found = {}
        for path in needs(request):
            name = str(path.relative_to(self.root))
            if name not in self.there and path.exists():
                self.there[name] = self.put(path.read_bytes())
            if name in self.there:
                found[name] = self.there[name]
        return found

    def receive(self, files: Mapping[str, bytes]) -> None:
        """Keep what a worker has made; what is there already stays."""
        for name, content in files.items():
            path = self.root / name
            if not path.resolve().is_relative_to(self.root.resolve()):
                raise ValueError(f"a worker sends {name!r}, which is not below its job")
            if not path.exists():
                write_atomically(path, content)


@dataclass(frozen=True)
class Site:
    """A worker's end.

    Args:
        root: the job's directory here.
        driver: the job's directory where the driver is.
        get: fetches a content.
    """

    root: Path
    driver: Path
    get: Callable[[Any], bytes]

    def unpack(self, request: Any, parcels: Parcels) -> Any:
        """The request with its files here."""
        for name, where in parcels.items():
            path = self.root / name
            if not path.exists():
                write_atomically(path, self.get(where))
        return relocated(request, self.driver, self.root)

    def pack(self, request: Any, answer: Any) -> tuple[Any, dict[str, bytes]]:
        """The answer to the unpacked `request`, for the driver, with the files that it made."""
        made = [path for path in makes(request, answer) if path.exists()]
        files = {str(path.relative_to(self.root)): path.read_bytes() for path in made}
        return relocated(answer, self.root, self.driver), files
