"""What the compiler calls this machine's processor.

LLVM tells it by the model's number. Whoever divides a machine into virtual ones may show another
number, or hide what the model has: then the name means features that are missing, or leaves out
some that are there. Where that concerns matrix registers, which are worth most, another name is
taken, one whose features are all there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

_VECTORS = frozenset(
    (
        *("avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
        *("avx512ifma", "avx512vbmi", "avx512_vbmi2", "avx512_vnni", "avx512_bitalg"),
        *("avx512_vpopcntdq", "gfni", "vaes", "vpclmulqdq"),
    )
)
_MATRICES = frozenset(("amx_tile", "amx_int8", "amx_bf16"))
_KNOWN = (
    ("sapphirerapids", _VECTORS | _MATRICES | {"avx_vnni", "avx512_bf16", "avx512_fp16"}),
    ("icelake-server", _VECTORS),
)
"""The compiler's names, with what it may use of them, by the system's names; most first."""


def processor_name(
    told: str, features: Collection[str], has_matrices: Callable[[str], bool]
) -> str:
    """The name to compile for.

    Args:
        told: the compiler's name by the model's number.
        features: that the system shows.
        has_matrices: whether the compiler takes a processor of that name to have matrix registers.
    """
    seen = set(features)
    if has_matrices(told) == (seen >= _MATRICES):
        return told
    return next((name for name, needed in _KNOWN if needed <= seen), told)
