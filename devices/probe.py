"""Probing the CPU of this machine, in a child process (it asks the compiler)."""

from __future__ import annotations

import hashlib
import platform
import sys
from typing import Any

from tunefarm.devices import cpu
from tunefarm.devices.device import Device, device_from_dict
from tunefarm.devices.naming import processor_name
from tunefarm.devices.target import make_target
from tunefarm.errors import NoDevice
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout

PROBE_LIMIT_S = 120.0
PROBED = "2"
"""How: a record that was made otherwise is made anew (2: names by features, `naming`)."""


def probe_host(_request: Any = None) -> dict[str, Any]:
    """Runs in the child: the host CPU as a `Device`'s dictionary."""
    import tvm
    import tvm_ffi

    features, cores = cpu.cpu_features(), cpu.usable_cores()
    told = str(tvm.target.Target.from_device("cpu").attrs["mcpu"])
    mcpu = processor_name(told, features)
    toolchain = {
        "probed": PROBED,
        "tvm": tvm.__version__,
        "tvm_ffi": tvm_ffi.__version__,
        "llvm": ".".join(str(part) for part in _llvm_version()),
        "linker": cpu.linker_version(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "os": f"{sys.platform} {platform.release()} {platform.machine()}",
    }
    device = Device(
        id="",
        sku=cpu.cpu_model(),
        host=cpu.host_name(),
        target=make_target("llvm", {"mcpu": mcpu, "num-cores": cores}),
        cores=cores,
        memory_bytes=cpu.memory_bytes(),
        caches=cpu.cache_sizes(),
        features=features,
        toolchain=tuple(sorted(toolchain.items())),
    )
    identity = hashlib.sha256(f"{device.host} {device.fingerprint}".encode()).hexdigest()[:8]
    return {**device.to_dict(), "id": f"cpu-{mcpu}-{cores}c-{identity}"}


def _llvm_version() -> tuple[int, ...]:
    import tvm

    major = tvm.target.codegen.llvm_version_major(allow_none=True)
    return (int(major),) if major is not None else ()


def probe() -> tuple[Device, ...]:
    """Every device of this machine that tunefarm can use: for now, its CPU."""
    with Child("tunefarm.devices.probe:probe_host") as child:
        try:
            return (device_from_dict(child.call(None, PROBE_LIMIT_S)),)
        except (ChildTimeout, ChildDied, ChildError) as error:
            raise NoDevice(
                f"this machine's CPU cannot be probed: {error}", hint="tunefarm doctor"
            ) from error
