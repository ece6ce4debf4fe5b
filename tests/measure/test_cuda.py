"""Machine code for GPUs, made on a machine without one; most of it needs no CUDA library."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cuda import needs_compiler
from tunefarm.devices.cuda_runtime import nvidia_packages
from tunefarm.devices.gpu import completed
from tunefarm.devices.target import parse_target
from tunefarm.errors import UnsupportedTarget
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.cuda import compiler as cuda
from tunefarm.measure.cuda import nvrtc
from tunefarm.measure.cuda.compiler import Resources, code_sizes, read_report
from tunefarm.measure.cuda.source import CudaError, block_sizes, with_bounds

SAID = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first_kernel' for 'sm_80'
ptxas info    : Function properties for first_kernel
    16 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 6912 bytes smem, 376 bytes cmem[0]
ptxas info    : Compiling entry function 'second_kernel' for 'sm_80'
ptxas info    : Function properties for second_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, 376 bytes cmem[0]
"""


def test_the_compilers_report_is_read() -> None:
    assert read_report(SAID, {"first_kernel": 512}, {"second_kernel": 128}) == (
        Resources("first_kernel", 255, 6912, 64, 16, 512, 0),
        Resources("second_kernel", 32, 0, 0, 0, 0, 128),
    )
    assert read_report("nothing of interest", {}, {}) == ()


def test_the_size_of_a_block_is_in_the_source() -> None:
    source = 'extern "C" __global__ void __launch_bounds__(256) main_kernel(float* A) {'
    assert block_sizes(source) == {"main_kernel": 256}


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"//\n.version 9.0\n"])
def test_what_is_no_machine_code_is_refused(data: bytes) -> None:
    with pytest.raises(CudaError, match="no 64-bit ELF"):
        code_sizes(data)


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cuda.COMPILER, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(nvrtc, "version", lambda: "")
    cuda.cuda_compiler.cache_clear()
    try:
        with pytest.raises(UnsupportedTarget, match="no nvcc on the path") as error:
            cuda.cuda_compiler()
        assert "tunefarm[cuda]" in error.value.hint
    finally:
        cuda.cuda_compiler.cache_clear()


def test_kernels_say_how_they_are_launched_each_for_itself() -> None:
    """By the names of functions that they call."""
    head = 'extern "C" __global__ void __launch_bounds__(384) {}(float* x)'
    others = "__device__ void tunefarm_registers_24() {}\n__device__ void f_cluster_of_2() {}\n"
    bodies = {"a": "", "b": "tunefarm_registers_24();", "c": "f_cluster_of_2(); f_cluster_of_2();"}
    source = others + "".join(f"{head.format(n)} {{ {body} }}\n" for n, body in bodies.items())
    made = with_bounds(source)
    assert head.format("a") in made
    assert (
        made.count("__launch_bounds__(384, 1) b(") == made.count("__launch_bounds__(384, 1)") == 1
    )
    clustered = "__cluster_dims__(2, 1, 1) __launch_bounds__(384) c("
    assert made.count(clustered) == made.count("__cluster_dims__") == 1
    assert block_sizes(made) == {"a": 384, "b": 384, "c": 384}
    assert with_bounds(others) == others


@pytest.fixture(params=list(cuda.COMPILERS))
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each of those that are here."""
    name: str = request.param
    if not cuda.COMPILERS[name].version():
        install = {
            "nvrtc": "pip install 'tunefarm[cuda]'",
            "nvcc": "it is in NVIDIA's CUDA toolkit",
        }
        pytest.skip(f"no {name} was found here: {install[name]}")
    monkeypatch.setenv(cuda.COMPILER, name)
    cuda.cuda_compiler.cache_clear()
    yield name
    cuda.cuda_compiler.cache_clear()


def test_the_later_release_compiles_and_of_the_same_the_quicker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chosen(**versions: str) -> str:
        for name, one in cuda.COMPILERS.items():
            monkeypatch.setattr(one, "version", partial(versions.get, name, ""))
        cuda.cuda_compiler.cache_clear()
        return cuda.cuda_compiler()

    monkeypatch.delenv(cuda.COMPILER, raising=False)
    try:
        assert chosen(nvcc="13.0.88") == "nvcc-13.0.88"
        assert chosen(nvcc="13.0.90", nvrtc="13.0.88") == "nvrtc-13.0.88"
        assert chosen(nvcc="13.1.2", nvrtc="13.0.88") == "nvcc-13.1.2"
        assert chosen(nvcc="9.2.1", nvrtc="13.0") == "nvrtc-13.0"
        monkeypatch.setenv(cuda.COMPILER, "nvcc")
        assert chosen(nvcc="12.9.1", nvrtc="13.0.88") == "nvcc-12.9.1"
        with pytest.raises(UnsupportedTarget, match="CUDA_COMPILER=nvcc: nothing here"):
            chosen(nvrtc="13.0.88")
        monkeypatch.setenv(cuda.COMPILER, "clang")
        with pytest.raises(UnsupportedTarget, match="clang") as error:
            chosen(nvrtc="13.0.88")
        assert "one of nvrtc, nvcc" in error.value.hint
    finally:
        cuda.cuda_compiler.cache_clear()


@pytest.mark.slow
@needs_compiler
def test_a_source_that_is_wrong_is_refused_in_the_compilers_words(compiler: str) -> None:
    with pytest.raises(CudaError, match="undefined"):
        cuda.compile_cuda('extern "C" __global__ void f(float* x) { x[0] = missing; }', "sm_80")


@pytest.mark.slow
@needs_compiler
def test_machine_code_and_its_report(compiler: str) -> None:
    source = (
        'extern "C" __global__ void __launch_bounds__(64) scale(float* x) '
        "{ __shared__ float s[64]; s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); "
        "x[threadIdx.x] = 2.0f * s[63 - threadIdx.x]; }"
    )
    assert cuda.cuda_compiler().startswith(f"{compiler}-")
    made = cuda.compile_cuda(source, "sm_90")
    assert made.cubin[:4] == b"\x7fELF"
    (one,) = made.resources
    assert (one.kernel, one.threads, one.shared_bytes, one.spill_bytes) == ("scale", 64, 256, 0)
    assert one.registers > 0
    assert one.code_bytes > 0
    assert cuda.compile_cuda(source, "sm_90").cubin == made.cubin


def test_a_library_that_is_not_all_there_is_not_taken_for_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages that lack the headers of tensor cores, and another processor's library."""
    real = next((f for r in nvidia_packages() for f in r.glob("**/libnvrtc.so.*")), None)
    if real is None:
        pytest.skip("NVRTC is not here as a package: pip install 'tunefarm[cuda]'")
    for part in ("lib", "include"):
        (tmp_path / part).mkdir()
        for one in (real.parents[1] / part).iterdir():
            if one.name != "crt":
                (tmp_path / part / one.name).symlink_to(one)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "libnvrtc.so.99").write_bytes(b"another processor's")
    monkeypatch.setattr(nvrtc, "nvidia_packages", lambda: [tmp_path])
    monkeypatch.setattr(nvrtc, "_TOOLKIT", tmp_path / "none")
    monkeypatch.setattr(nvrtc, "_NAMES", ())
    nvrtc._found.cache_clear()
    try:
        assert nvrtc.version() == ""
        (tmp_path / "include" / "crt").symlink_to(real.parents[1] / "include" / "crt")
        nvrtc._found.cache_clear()
        assert nvrtc.version().count(".") == 2
    finally:
        nvrtc._found.cache_clear()


@pytest.mark.parametrize(
    ("files", "first"),
    [
        (("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"), "cu13/lib/libnvrtc.so.13"),
        (("lib/libnvrtc.so.13.0.88", "lib/libnvrtc.so.9.2"), "lib/libnvrtc.so.13.0.88"),
    ],
)
def test_of_several_libraries_the_latest_is_tried_first(files: tuple[str, ...], first: str) -> None:
    assert max(map(Path, files), key=nvrtc._numbers_of) == Path(first)


TRAITS = """\
static_assert(std::is_same_v<uint16_t, unsigned short> && !std::is_same<int64_t, int>::value);
static_assert(sizeof(int64_t) == 8 && sizeof(uint64_t) == 8 && sizeof(uint32_t) == 4);
static_assert(std::is_integral<char>::value && std::is_integral<int64_t>::value);
static_assert(std::is_integral<bool>::value && !std::is_integral<float>::value);
static_assert(std::is_unsigned<uint8_t>::value && !std::is_unsigned<int8_t>::value);
static_assert(std::is_signed<int32_t>::value && std::is_signed<float>::value);
static_assert(!std::is_signed<uint64_t>::value && std::is_floating_point<double>::value);
static_assert(!std::is_floating_point<int>::value && std::is_signed<char>::value);
static_assert(std::is_integral<const int>::value && std::is_integral<wchar_t>::value);
static_assert(std::is_unsigned<bool>::value && std::is_unsigned<volatile unsigned>::value);
static_assert(!std::is_unsigned<float>::value && !std::is_signed<half>::value);
static_assert(!std::is_integral<half>::value && std::is_integral<char16_t>::value);
template <class A> typename std::enable_if<std::is_integral<A>::value, int>::type f(A) { return 1; }
template <class A> typename std::enable_if<!std::is_integral<A>::value, char>::type f(A) {
  return 1;
}
static_assert(sizeof(f(1)) == 4 && sizeof(f(1.0f)) == 1);
static_assert(std::is_same_v<std::conditional<true, int, char>::type, int>);
static_assert(std::is_same_v<std::conditional<false, int, char>::type, char>);
"""


@pytest.mark.tvm
@needs_compiler
def test_headers_of_our_own_say_what_the_hosts_say(compiler: str) -> None:
    """Behind what TVM begins its source with, whichever compiler reads it."""
    import tvm

    from tunefarm.measure import lowering  # noqa: F401  (the compiler without a runtime)
    from tunefarm.measure.cuda import cubin
    from tunefarm.search.replay import by_default, tvm_target

    target = completed(parse_target("cuda:arch=sm_80"))
    module = by_default(_product(64, "float16"), target)
    (device,) = cubin.device_modules(tvm.tirx.build(module, target=tvm_target(target)))
    source = device.inspect_source()
    first = source.index('extern "C" __global__')
    made = cuda.compile_cuda(source[:first] + TRAITS + source[first:], "sm_80")
    assert len(made.resources) == 1
    wrong = "static_assert(std::is_integral<float>::value);"
    with pytest.raises(CudaError, match="assert"):
        cuda.compile_cuda(source[:first] + wrong + source[first:], "sm_80")


@pytest.mark.tvm
@needs_compiler
def test_what_hoppers_engine_feeds_compiles(compiler: str, tmp_path: Path) -> None:
    """Its maps are a type of CUDA's own headers."""
    import tvm

    from tests.paper_gpu import trace_of
    from tests.products import product
    from tunefarm.measure.compile import run_build

    module = product("float16", (128, 96, 128))
    words = "tensor-tile cores=groups rows=128 columns=96 depth=64 stages=4 down=8 across=1"
    workload = tmp_path / "workload.json"
    workload.write_text(tvm.ir.save_json(module))
    target = completed(parse_target("cuda:arch=sm_90"))
    trace = trace_of(module, f"{words} feed=engine")
    made = run_build(BuildRequest(workload, target, trace, tmp_path / "k.so"))
    assert all(one.spill_bytes == 0 for one in made.resources)


@pytest.fixture(scope="module")
def builder():
    made = Builder(120.0)
    yield made
    made.close()


def _product(size: int, dtype: str):
    """Summed in float32."""
    import tvm
    from tvm import te, topi

    a, b = (te.placeholder((size, size), name=n, dtype=dtype) for n in "ab")
    c = topi.nn.matmul(a, b, out_dtype="float32")
    c = c if dtype == "float32" else topi.cast(c, dtype)
    function = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": function})


def _architectures(library: bytes) -> set[str]:
    """Of the machine code in `library`, as the headers of its ELF files say."""
    found = set()
    for start in (one.start() for one in re.finditer(b"\x7fELF", library)):
        (machine,) = struct.unpack_from("<H", library, start + 18)
        (flags,) = struct.unpack_from("<I", library, start + 48)
        if machine == 190:  # CUDA's; its format has moved the number once
            found.add(f"sm_{(flags >> 8 if library[start + 8] >= 8 else flags) & 0xFF}")
    return found


@pytest.mark.long
@pytest.mark.tvm
@needs_compiler
@pytest.mark.parametrize(
    ("arch", "dtype"), [("sm_80", "float32"), ("sm_90", "float16"), ("sm_80", "bfloat16")]
)
def test_candidates_are_built_with_machine_code_inside(
    arch, dtype, builder: Builder, tmp_path: Path
) -> None:
    """The untuned kernel, and the likeliest schedules of plain and of tensor cores."""
    import tvm

    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    target = completed(parse_target(f"cuda:arch={arch}"))
    workload = _product(256, dtype)
    path = tmp_path / "workload.json"
    path.write_text(tvm.ir.save_json(workload))
    space = design_space(workload, target)
    traces, rules, sketches = {"": ""}, set(), set()
    for number, one in enumerate(sorted(space.modelled(), key=lambda one: one.seconds)):
        proposal = None
        if one.point.sketch not in sketches:
            proposal = space.realise(one.point, number)
        if proposal is None:
            continue
        sketches.add(one.point.sketch)
        assert proposal.point == one.point
        assert space.locate(proposal.trace) is not None
        kind = replay.rules_of(proposal.trace)
        if kind not in rules:
            rules.add(kind)
            traces[kind or "plain"] = proposal.trace
        if len(rules) == (1 if dtype == "float32" else 2):
            break
    assert rules == ({""} if dtype == "float32" else {"", replay.TENSOR_CORES})
    for name, trace in traces.items():
        library = tmp_path / f"{name or 'untuned'}.so"
        outcome = builder.build(BuildRequest(path, target, trace, library))
        assert outcome.failure is None, outcome.failure
        assert outcome.library is not None
        (one,) = outcome.library.resources
        assert 0 < one.registers <= 255
        assert 32 <= one.threads <= 1024
        content = library.read_bytes()
        assert _architectures(content) == {arch}
        assert b"__global__" not in content, "the source is still in it"


@pytest.mark.tvm
@needs_compiler
def test_a_schedule_that_fits_no_block_is_dropped(tmp_path: Path) -> None:
    """Before it is built where the space knows it, else before it is measured."""
    from tunefarm.search.spaces.generic import GenericSpace
    from tunefarm.search.strategies.tiles import random_point

    target = completed(parse_target("cuda:arch=sm_80"))
    workload = _product(512, "float32")
    space = GenericSpace(workload, target)
    knobs = space.sketches[0]
    import random

    point = random_point((knobs,), random.Random(0))
    values = list(point.values)
    values[0] = values[1] = (1, 1, 512, 1, 1)  # 262144 threads
    assert space.realise(type(point)(0, tuple(values)), 0) is None


@pytest.mark.tvm
def test_what_is_untuned_is_scheduled_by_default_and_what_it_came_from_stays() -> None:
    from tunefarm.search.replay import by_default

    target = completed(parse_target("cuda:arch=sm_80"))
    module = _product(64, "int8")
    before = module.script()
    assert "blockIdx.x" in by_default(module, target).script()
    assert module.script() == before


@pytest.mark.tvm
def test_machine_code_takes_the_place_of_the_source() -> None:
    """Needs no CUDA at all: what TVM writes is what `cubin` expects."""
    import os

    import tvm
    import tvm_ffi

    from tunefarm.measure import lowering  # noqa: F401  (the compiler without a runtime)
    from tunefarm.measure.cuda import cubin
    from tunefarm.search.replay import by_default, tvm_target

    assert os.environ["TVM_COMPILE_FORCE_FALLBACK"] == "1"
    target = completed(parse_target("cuda:arch=sm_80"))
    built = tvm.tirx.build(by_default(_product(64, "float32"), target), target=tvm_target(target))
    (device,) = cubin.device_modules(built)
    source = device.inspect_source().encode()
    pack = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")
    blob = pack(built).numpy().tobytes()
    made = cubin.with_machine_code(blob, source, b"machine code")
    assert int.from_bytes(made[:8], "little") == len(made) - 8
    assert source not in made
    assert made.endswith((5).to_bytes(8, "little") + b"cubin" + made[made.index(b"cubin") + 5 :])
    assert made.endswith((12).to_bytes(8, "little") + b"machine code")
    # All but lengths, format and code is as it was.
    assert len(blob) - len(made) == len(source) - len(b"machine code") - 1
    for bad in (blob[:-1], blob.replace(source, source[:-1]), blob + blob):
        with pytest.raises(cubin.EmbedError):
            cubin.with_machine_code(bad, source, b"machine code")


@pytest.mark.tvm
@needs_compiler
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 8, 33])
def test_tensor_cores_are_not_made_to_wait_for_registers(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are, instruction for instruction, where the compiler cannot tell that nobody writes
    what they still read. It says so, and nothing else would be wrong."""
    import tvm

    from tests.paper_gpu import trace_of
    from tests.products import product
    from tunefarm.measure.compile import run_build

    seen: list[tuple[str, str]] = []

    def listened(make):
        def compiled(source: str, arch: str) -> tuple[bytes, bytes, str]:
            found = make(source, arch)
            unwaited = re.sub(r"wgmma\.wait_group\.sync\.aligned [^;]*;", "", source)
            seen.append((found[2], make(unwaited, arch)[2]))
            return found

        return compiled

    for one in cuda.COMPILERS.values():
        monkeypatch.setattr(one, "compiled", listened(one.compiled))
    module = product("float32", (192, 128, 32 * steps))
    words = "tensor-tile cores=groups rows=192 columns=128 depth=32 stages=4 down=8 across=1"
    target = completed(parse_target("cuda:arch=sm_90:precision=tf32"))
    workload = tmp_path / "workload.json"
    workload.write_text(tvm.ir.save_json(module))
    trace = trace_of(module, f"{words} feed=engine")
    run_build(BuildRequest(workload, target, trace, tmp_path / "k.so"))
    ((said, otherwise),) = seen
    assert "registers" in said
    assert "(C75" not in said
    assert "(C75" in otherwise, "it does say so"
