"""Libraries that stand in for NVIDIA's: every function of theirs that is used here leads to Python.

`environment` is what a process needs to find a GPU of paper where others find a real one; nothing
else in it knows of that. The libraries are a table of addresses and, for each function, a jump
through it, assembled and linked with what links kernels.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from pathlib import Path

from tunefarm.devices.gpu import arch_of
from tunefarm.devices.target import parse_target
from tunefarm.home import write_atomically
from tunefarm.measure.cuda.compiler import PTX_DIRECTORY

GPU = "TUNEFARM_EMULATED_GPU"
"""Environment variable: the architecture of the GPU of paper, such as ``sm_80``."""

GONE = "TUNEFARM_EMULATED_GPU_GONE"
"""Environment variable: the GPU does not answer while there is a file of this name."""

DRIVER, RUNTIME, MANAGEMENT = "libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1"
FUNCTIONS: dict[str, tuple[str, ...]] = {
    DRIVER: (
        *("cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName"),
        *("cuDeviceGetAttribute", "cuDeviceGetUuid_v2", "cuModuleLoadData", "cuModuleUnload"),
        *("cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernelEx", "cuGetErrorName"),
        *("cuGetErrorString", "cuTensorMapEncodeTiled", "cuGetExportTable"),
    ),
    RUNTIME: (
        *("cudaGetDeviceCount", "cudaGetDevice", "cudaSetDevice", "cudaDeviceGetAttribute"),
        *("cudaGetDeviceProperties", "cudaMemGetInfo", "cudaMalloc", "cudaFree", "cudaMallocHost"),
        *("cudaFreeHost", "cudaMemcpyAsync", "cudaMemcpyPeerAsync", "cudaGetLastError"),
        *("cudaPeekAtLastError", "cudaGetErrorName", "cudaGetErrorString", "cudaEventCreate"),
        *("cudaEventDestroy", "cudaEventRecord", "cudaEventSynchronize", "cudaEventElapsedTime"),
        *("cudaStreamCreate", "cudaStreamCreateWithFlags", "cudaStreamDestroy"),
        *("cudaStreamSynchronize", "cudaStreamWaitEvent", "cudaStreamBeginCapture"),
        *("cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphLaunch", "cudaGraphDestroy"),
        *("cudaGraphExecDestroy", "cudaGraphGetNodes"),
    ),
    MANAGEMENT: (
        *("nvmlInit_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetClockInfo"),
        *("nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage"),
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ),
}
TABLE = "tunefarm_table"
_START = """\
try:
    import tunefarm.measure.cuda

    # What a bundle brings along has no GPU of paper.
    tunefarm.measure.cuda.__path__.append({home!r})
    import tunefarm.measure.cuda.emulator.driver as driver
except ImportError:
    pass
else:
    driver.install()
"""
"""What every interpreter of the environment begins with."""


def ptx_in(directory: Path) -> Path:
    """Where compilers leave PTX for a GPU of paper whose libraries lie in `directory`."""
    return directory / "ptx"


def environment(directory: Path, arch: str) -> dict[str, str]:
    """Variables for processes that are to see a GPU of paper, and to build for it.

    Args:
        directory: where the libraries are made, and the PTX of what is compiled is kept.

    Raises:
        OSError: they cannot be made: ``as`` or ``ld`` are missing, say.
        UnsupportedTarget: there is no such architecture.
    """
    arch_of(parse_target(f"cuda:arch={arch}"))
    text = "".join(map(_assembled, FUNCTIONS))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]  # another version has other functions
    libraries, start, ptx = directory / f"lib-{digest}", directory / "start", ptx_in(directory)
    for one in (libraries, start, ptx):
        one.mkdir(parents=True, exist_ok=True)
    for library in FUNCTIONS:
        if not (libraries / library).exists():
            _make(libraries, library)
    home = str(Path(__file__).parents[1])
    # Interpreters of other jobs may be starting.
    write_atomically(start / "sitecustomize.py", _START.format(home=home).encode())
    return {
        "LD_LIBRARY_PATH": _before(libraries, "LD_LIBRARY_PATH"),
        "PYTHONPATH": _before(start, "PYTHONPATH"),
        PTX_DIRECTORY: str(ptx),
        GPU: arch,
    }


def _before(directory: Path, variable: str) -> str:
    return os.pathsep.join(filter(None, [str(directory), os.environ.get(variable, "")]))


def _assembled(library: str) -> str:
    return assembly(FUNCTIONS[library], platform.machine())


def _make(directory: Path, library: str) -> None:
    stem = f".{library}-{os.getpid()}"
    source, made, script, shared = (
        directory / f"{stem}{suffix}" for suffix in (".s", ".o", ".map", ".so")
    )
    source.write_text(_assembled(library))
    linking = ["ld", "-shared", "-Bsymbolic", "-soname", library, "-o", str(shared), str(made)]
    if library == RUNTIME:  # TVM asks for its functions by their version, which is its name
        script.write_text(f"{library} {{ global: *; }};\n")
        linking += ["--version-script", str(script)]
    try:
        for command in (["as", "-o", str(made), str(source)], linking):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise OSError(f"{command[0]}: {done.stderr.strip()[-300:]}")
        os.replace(shared, directory / library)
    finally:
        for file in (source, made, script, shared):
            file.unlink(missing_ok=True)


_JUMPS = {
    "x86_64": "\tmovq {table}@GOTPCREL(%rip), %r11\n\tjmp *{offset}(%r11)\n",
    "aarch64": "\tadrp x16, :got:{table}\n\tldr x16, [x16, :got_lo12:{table}]\n"
    "\tldr x17, [x16, #{offset}]\n\tbr x17\n",
}

_NOTHING = {"x86_64": "\txorl %eax, %eax\n\tret\n", "aarch64": "\tmov w0, wzr\n\tret\n"}
"""What is called before Python leads it elsewhere, and when Python is gone: no error."""


def assembly(functions: tuple[str, ...], machine: str) -> str:
    """
    Raises:
        OSError: for another processor.
    """
    if machine not in _JUMPS:
        raise OSError(f"a GPU of paper runs on {' and '.join(_JUMPS)}, not on {machine}")
    text = "\t.text\n"
    for number, name in enumerate(functions):
        jump = _JUMPS[machine].format(table=TABLE, offset=8 * number)
        text += f"\t.globl {name}\n\t.type {name}, %function\n{name}:\n{jump}"
    text += f"nothing:\n{_NOTHING[machine]}"
    text += f"\t.data\n\t.balign 8\n\t.globl {TABLE}\n\t.type {TABLE}, %object\n"
    text += f"{TABLE}:\n" + "\t.quad nothing\n" * len(functions)
    text += f"\t.size {TABLE}, {8 * len(functions)}\n"
    return text + '\t.section .note.GNU-stack,"",%progbits\n'
