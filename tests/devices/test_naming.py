"""Processors by the features that they have."""

from __future__ import annotations

import pytest

from tunefarm.devices import cpu
from tunefarm.devices.naming import processor_name

ICELAKE = (
    *("avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    *("avx512ifma", "avx512vbmi", "avx512_vbmi2", "avx512_vnni", "avx512_bitalg"),
    *("avx512_vpopcntdq", "gfni", "vaes", "vpclmulqdq", "sse4_2", "ht"),
)
SAPPHIRE = (
    *ICELAKE,
    *("avx_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
)
HAVE = {"sapphirerapids", "graniterapids"}


@pytest.mark.parametrize(
    ("told", "features", "name"),
    [
        ("rocketlake", SAPPHIRE, "sapphirerapids"),
        ("graniterapids", SAPPHIRE, "graniterapids"),
        ("graniterapids", ICELAKE, "icelake-server"),
        ("rocketlake", ICELAKE, "rocketlake"),
        ("znver3", ("avx2", "fma"), "znver3"),
        ("sapphirerapids", ("avx2", "fma"), "sapphirerapids"),
        ("znver9", (*SAPPHIRE[:5], *SAPPHIRE[-3:]), "znver9"),
    ],
)
def test_a_name_has_matrix_registers_where_the_machine_has(
    told: str, features: tuple[str, ...], name: str
) -> None:
    """As long as another fits."""
    assert processor_name(told, features, HAVE.__contains__) == name


@pytest.mark.tvm
def test_the_compiler_knows_them() -> None:
    from tunefarm.devices.matrices import multiplies_matrices
    from tunefarm.devices.target import parse_target

    for name, has in (("sapphirerapids", True), ("graniterapids", True), ("icelake-server", False)):
        assert multiplies_matrices(parse_target(f"llvm:mcpu={name}")) == has


@pytest.mark.parametrize("lent", [True, False])
def test_what_the_system_keeps_back_is_not_there(
    lent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "cpu_info", lambda: {"flags": "fma amx_tile avx2 amx_int8"})
    monkeypatch.setattr(cpu, "matrices_are_lent", lambda: lent)
    assert cpu.cpu_features() == (*(("amx_int8", "amx_tile") if lent else ()), "avx2", "fma")
