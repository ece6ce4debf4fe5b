"""This machine's device for a target, seen with the runtime alone: no compiler is asked."""

from __future__ import annotations

import hashlib
import platform
import sys
from typing import Any

from tunefarm.devices import cpu
from tunefarm.devices.device import Device, device_from_dict
from tunefarm.devices.gpu import completed
from tunefarm.devices.gpu_driver import VISIBLE, driver
from tunefarm.devices.target import Target, make_target
from tunefarm.errors import NoDevice
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout

PROBE_LIMIT_S = 120.0
RUNTIME_ONLY = {"TVM_USE_RUNTIME_LIB": "1"}


def device_here(target: Target, uuid: str = "") -> Device:
    """The device of this machine that a library for `target` runs on: of several GPUs the first, or
    the one that `uuid` names. A processor's name cannot be told without the compiler: the target's
    is taken.

    Raises:
        NoDevice: there is none.
    """
    handler = "tunefarm.devices.here:probe_" + target.kind
    with Child(handler, env={**RUNTIME_ONLY, **only(uuid)}) as child:
        try:
            return device_from_dict(child.call(target, PROBE_LIMIT_S))
        except (ChildTimeout, ChildDied, ChildError) as error:
            raise NoDevice(f"this machine has no device for {target.text}: {error}") from error


def only(uuid: str) -> dict[str, str]:
    """Environment of a process that is to see no GPU but this one; "" for whichever it may see."""
    return {VISIBLE: uuid} if uuid else {}


def _toolchain() -> tuple[tuple[str, str], ...]:
    import tvm
    import tvm_ffi

    return tuple(
        sorted(
            {
                "tvm": tvm.__version__,
                "tvm_ffi": tvm_ffi.__version__,
                "libc": " ".join(platform.libc_ver()),
                "python": platform.python_version(),
                "os": f"{sys.platform} {platform.release()} {platform.machine()}",
            }.items()
        )
    )


def identified(device: Device, kind: str) -> dict[str, Any]:
    """Its dictionary, with a name that no other device has: `kind` and a hash."""
    words = " ".join([device.host, device.fingerprint, *filter(None, [device.uuid])])
    identity = hashlib.sha256(words.encode()).hexdigest()[:8]
    return {**device.to_dict(), "id": f"{kind}-{identity}"}


def probe_llvm(target: Target) -> dict[str, Any]:
    """Runs in the child: the processor as a `Device`'s dictionary."""
    cores = cpu.usable_cores()
    resolved = make_target("llvm", {**dict(target.hardware.attrs), "num-cores": cores})
    device = Device(
        id="",
        sku=cpu.cpu_model(),
        host=cpu.host_name(),
        target=resolved,
        cores=cores,
        memory_bytes=cpu.memory_bytes(),
        caches=cpu.cache_sizes(),
        features=cpu.cpu_features(),
        toolchain=_toolchain(),
    )
    return identified(device, f"cpu-{target.get('mcpu') or 'generic'}-{cores}c")


def probe_cuda(target: Target) -> dict[str, Any]:
    """Runs in the child: the first GPU that it sees as a `Device`'s dictionary.

    Raises:
        NoDevice: the driver shows none.
    """
    from tunefarm.devices.cuda_runtime import load_cuda_runtime

    load_cuda_runtime()
    import tvm

    gpu = tvm.cuda(0)
    if not gpu.exist:
        raise NoDevice("the driver shows no GPU", hint="nvidia-smi says what it sees")
    arch = "sm_" + str(gpu.compute_version).replace(".", "")
    named = {key: value for key, value in target.hardware.attrs if key != "arch"}
    l2 = int(getattr(gpu, "l2_cache_size_bytes", 0) or 0)
    here = driver()
    device = Device(
        id="",
        sku=str(gpu.device_name),
        host=cpu.host_name(),
        target=completed(make_target("cuda", {**named, "arch": arch})),
        cores=cpu.usable_cores(),
        memory_bytes=int(getattr(gpu, "total_global_memory", 0) or 0),
        caches=(0, l2, 0),
        features=(f"multiprocessors-{gpu.multi_processor_count}",),
        toolchain=_toolchain(),
        uuid=here.gpus[0].uuid if here and here.gpus else "",
    )
    return identified(device, f"cuda-{arch}")
