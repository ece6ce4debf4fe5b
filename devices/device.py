"""A device: one thing that runs kernels, and how it is told apart from every other."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tunefarm.devices.target import Target, target_from_json

EMULATED = "GPU of paper"
"""The SKU of what only computes what a GPU computes."""


@dataclass(frozen=True)
class Device:
    """What was read off one device when it was probed.

    Attributes:
        id: readable and unique: ``cpu-<hash of what identifies it>``.
        sku: what the seller calls it; results are comparable within one SKU.
        target: with every attribute filled in.
        cores: physical cores this process may use.
        memory_bytes: of the machine.
        caches: bytes of L1d, L2 (one core's) and L3, 0 where unknown.
        features: instruction set extensions, sorted.
        toolchain: versions of what builds and runs here (tvm, llvm, linker, libc, python, os).
        uuid: of a GPU, the driver's name for it, for a machine may have several of a kind; else "".
    """

    id: str
    sku: str
    host: str
    target: Target
    cores: int
    memory_bytes: int
    caches: tuple[int, int, int]
    features: tuple[str, ...]
    toolchain: tuple[tuple[str, str], ...]
    uuid: str = ""

    @property
    def is_emulated(self) -> bool:
        """Whether its times say nothing of any device (`measure.cuda.emulator`)."""
        return self.sku == EMULATED

    @property
    def is_none(self) -> bool:
        """Whether it stands for a device that nobody has (`no_device`)."""
        return not self.sku

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides how fast a kernel runs here; 16 hex digits."""
        facts = [self.sku, self.target.text, self.cores, self.caches, self.features]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "target": json.loads(self.target.to_json()),
            "toolchain": dict(self.toolchain),
            "fingerprint": self.fingerprint,
        }


def no_device(target: Target, builder: Device) -> Device:
    """What stands for the device of a `target` that no device serves, built for by `builder`'s
    machine."""
    return dataclasses.replace(
        builder,
        id=f"none-{target.kind}",
        sku="",
        target=target,
        memory_bytes=0,
        caches=(0, 0, 0),
        features=(),
    )


def device_from_dict(data: dict[str, Any]) -> Device:
    return Device(
        id=data["id"],
        sku=data["sku"],
        host=data["host"],
        target=target_from_json(json.dumps(data["target"])),
        cores=data["cores"],
        memory_bytes=data["memory_bytes"],
        caches=(data["caches"][0], data["caches"][1], data["caches"][2]),
        features=tuple(data["features"]),
        toolchain=tuple(sorted(data["toolchain"].items())),
        uuid=data.get("uuid", ""),
    )
