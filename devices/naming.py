"""What the compiler calls this machine's processor.

LLVM tells it by the model's number. Whoever divides a machine into virtual ones may show another
number, or hide what the model has: then the name means features that are missing, or leaves out
some that are there. Where that concerns matrix registers, which are worth most, another name is
taken, one whose features are all there.
"""

from __future__ import annotations

from collections.abc import Collection

_V2 = frozenset(("cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"))
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_ICELAKE = _V4 | {
    *("adx", "aes", "avx512ifma", "avx512vbmi", "avx512_vbmi2", "avx512_vnni", "avx512_bitalg"),
    *("avx512_vpopcntdq", "gfni", "pclmulqdq", "sha_ni", "vaes", "vpclmulqdq"),
}
_MATRICES = frozenset(("amx_tile", "amx_int8", "amx_bf16"))
_KNOWN = (
    (
        "sapphirerapids",
        _ICELAKE | _MATRICES | {"avx_vnni", "avx512_bf16", "avx512_fp16"},
    ),
    ("icelake-server", _ICELAKE),
    ("x86-64-v4", _V4),
    ("x86-64-v3", _V3),
    ("x86-64-v2", _V2),
    ("x86-64", frozenset[str]()),
)
"""The compiler's names, with what code for them may need, by the system's names; most first. What
only systems use of these processors is left out."""
WITH_MATRICES = (
    *("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids"),
)
"""The compiler's names of processors with matrix registers."""


def processor_name(told: str, features: Collection[str]) -> str:
    """The name to compile for.

    Args:
        told: the compiler's name by the model's number.
        features: that the system shows.
    """
    seen = set(features)
    wanted = seen >= _MATRICES
    if (told in WITH_MATRICES) == wanted:
        return told
    known = (name for name, needed in _KNOWN if needed <= seen)
    return next((name for name in known if (name in WITH_MATRICES) == wanted), told)


def lacking(name: str, features: Collection[str]) -> list[str]:
    """Of the matrix registers that code for a processor of this name may use, the features that are
    missing among `features`."""
    return sorted(_MATRICES - set(features)) if name in WITH_MATRICES else []
