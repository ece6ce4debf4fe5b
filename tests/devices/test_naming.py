"""Processors by the features that they have."""

from __future__ import annotations

import pytest

from tunefarm.devices import cpu
from tunefarm.devices.naming import _KNOWN, WITH_MATRICES, lacking, processor_name

V3 = (
    *("cx16", "popcnt", "sse4_1", "sse4_2", "ssse3", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma"),
    *("abm", "movbe"),
)
ICELAKE = (
    *(*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "adx", "aes", "avx512ifma"),
    *("avx512vbmi", "avx512_vbmi2", "avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq", "gfni"),
    *("pclmulqdq", "sha_ni", "vaes", "vpclmulqdq", "ht"),
)
SAPPHIRE = (
    *ICELAKE,
    *("avx_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
)


def without(features: tuple[str, ...], *others: str) -> tuple[str, ...]:
    return tuple(one for one in features if one not in others)


@pytest.mark.parametrize(
    ("told", "features", "name"),
    [
        ("rocketlake", SAPPHIRE, "sapphirerapids"),
        ("graniterapids", SAPPHIRE, "graniterapids"),
        ("graniterapids", ICELAKE, "icelake-server"),
        ("rocketlake", ICELAKE, "rocketlake"),
        ("znver3", V3, "znver3"),
        ("sapphirerapids", without(ICELAKE, "vaes"), "x86-64-v4"),
        ("sapphirerapids", V3, "x86-64-v3"),
        ("sapphirerapids", without(V3, "avx2"), "x86-64-v2"),
        ("sapphirerapids", (), "x86-64"),
        ("cooperlake", without(SAPPHIRE, "avx512_fp16"), "cooperlake"),
        ("apple-m4", ("asimd",), "apple-m4"),
    ],
)
def test_a_name_has_matrix_registers_where_the_machine_has(
    told: str, features: tuple[str, ...], name: str
) -> None:
    """As long as another fits."""
    assert processor_name(told, features) == name


def test_what_a_processor_of_a_name_lacks() -> None:
    assert lacking("sapphirerapids", ICELAKE) == ["amx_bf16", "amx_int8", "amx_tile"]
    assert lacking("sapphirerapids", SAPPHIRE) == []
    assert lacking("icelake-server", ICELAKE) == []


@pytest.mark.tvm
def test_the_compiler_knows_them_so() -> None:
    from tunefarm.devices.matrices import multiplies_matrices
    from tunefarm.devices.target import parse_target

    for name in (*WITH_MATRICES, *(name for name, _ in _KNOWN), "cooperlake"):
        assert multiplies_matrices(parse_target(f"llvm:mcpu={name}")) == (name in WITH_MATRICES)


@pytest.mark.parametrize("lent", [True, False])
def test_what_the_system_keeps_back_is_not_there(
    lent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "cpu_info", lambda: {"flags": "fma amx_tile avx2 amx_int8"})
    monkeypatch.setattr(cpu, "matrices_are_lent", lambda: lent)
    assert cpu.cpu_features() == (*(("amx_int8", "amx_tile") if lent else ()), "avx2", "fma")
