"""What is known of GPUs without one."""

from __future__ import annotations

import pytest

from tunefarm.devices.gpu import arch_of, completed, multiplies_tf32
from tunefarm.devices.gpu_driver import Driver, Gpu, gpu_misfits
from tunefarm.devices.target import make_target, parse_target
from tunefarm.errors import UnsupportedTarget


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_120"])
def test_a_target_is_completed_with_its_limits(arch: str) -> None:
    target = completed(parse_target(f"cuda:arch={arch}"))
    assert target.get("arch") == arch
    assert target.get("max_threads_per_block") == 1024
    assert target.get("registers_per_block") == 65536
    assert target.get("max_shared_memory_per_block") == 49152
    assert arch_of(target).warp == 32


def test_what_a_target_says_itself_is_kept() -> None:
    named = make_target("cuda", {"arch": "sm_80", "max_threads_per_block": 512})
    assert completed(named).get("max_threads_per_block") == 512


@pytest.mark.parametrize("text", ["cuda", "cuda:arch=sm_21", "cuda:arch=volta", "cuda:arch=80"])
def test_an_architecture_that_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedTarget, match="architecture"):
        completed(parse_target(text))


def test_tf32_is_for_who_asks_and_has_it() -> None:
    assert multiplies_tf32(parse_target("cuda:arch=sm_80:precision=tf32"))
    for text in ("cuda:arch=sm_80", "cuda:arch=sm_80:precision=float32", "llvm"):
        assert not multiplies_tf32(parse_target(text))
    for text in ("cuda:arch=sm_75:precision=tf32", "cuda:arch=sm_80:precision=float8"):
        with pytest.raises(UnsupportedTarget, match=r"tf32|float8"):
            completed(parse_target(text))


def _gpus(*archs: tuple[int, int]) -> tuple[Gpu, ...]:
    return tuple(Gpu(arch, f"GPU-{number}") for number, arch in enumerate(archs))


@pytest.mark.parametrize(
    ("arch", "cuda", "here", "words"),
    [
        ("sm_80", 13, Driver(13, _gpus((8, 0))), []),
        ("sm_80", 12, Driver(13, _gpus((8, 6))), []),
        ("sm_80", 13, Driver(13, _gpus((8, 9), (7, 5))), []),
        ("sm_80", 13, Driver(13, _gpus((7, 5), (8, 9))), ["first GPU is sm_75"]),
        ("sm_86", 13, Driver(13, _gpus((8, 0))), ["sm_80"]),
        ("sm_80", 13, Driver(13, _gpus((9, 0))), ["sm_90"]),
        ("sm_90a", 13, Driver(12, _gpus((9, 0))), ["driver for CUDA 13"]),
        ("sm_120", 13, Driver(12, _gpus((8, 0))), ["sm_80", "CUDA 13"]),
        ("sm_80", 13, Driver(13, _gpus()), ["shows none"]),
    ],
)
def test_machine_code_runs_on_later_ones_of_its_major_version(arch, cuda, here, words) -> None:
    found = gpu_misfits(arch, cuda, here)
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))


@pytest.mark.parametrize(
    ("threads", "each"), [(128, 255), (256, 255), (288, 168), (384, 168), (512, 128), (1024, 64)]
)
def test_registers_are_given_out_to_four_warps_together(threads: int, each: int) -> None:
    """One warp more than eight takes as much as four, and to a thread they come by eights."""
    arch = arch_of(parse_target("cuda:arch=sm_90"))
    assert arch.registers_each(threads) == each
    assert arch.blocks_by_registers(threads, each) >= 1
    assert arch.blocks_by_registers(threads, each - 7) == arch.blocks_by_registers(threads, each)
    assert arch.blocks_by_registers(1024, 65) == 0
