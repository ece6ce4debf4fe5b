"""Targets as people write them on the command line, and as TVM wants them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tunefarm.errors import UnsupportedTarget, UsageError

TUNABLE_KINDS = ("llvm", "cuda")
ALLOWANCES = frozenset({"precision"})
"""Attributes that say what kernels may do, and nothing of the hardware: TVM and devices have none
of them."""
_OTHER_TVM_KINDS = ("c", "hexagon", "metal", "nvptx", "opencl", "rocm", "vulkan", "webgpu")


@dataclass(frozen=True)
class Target:
    """A TVM target: a kind and its attributes, ordered so that equal targets have equal text."""

    kind: str
    attrs: tuple[tuple[str, str | int], ...] = ()

    @property
    def text(self) -> str:
        """``llvm:mcpu=znver5:num-cores=2``; `parse_target` reads it back."""
        return ":".join([self.kind, *(f"{key}={value}" for key, value in self.attrs)])

    @property
    def tvm(self) -> dict[str, str | int]:
        """The dictionary `tvm.target.Target` takes."""
        return {"kind": self.kind, **dict(self.hardware.attrs)}

    @property
    def hardware(self) -> Target:
        """Without what it allows."""
        return Target(self.kind, tuple(one for one in self.attrs if one[0] not in ALLOWANCES))

    def get(self, key: str) -> str | int | None:
        return dict(self.attrs).get(key)

    def with_attrs(self, attrs: dict[str, str | int]) -> Target:
        """This target with `attrs` filled in where it does not name them itself."""
        return make_target(self.kind, {**attrs, **dict(self.attrs)})

    def admits(self, other: Target) -> bool:
        """True when `other` is of this kind and has every attribute of hardware that this one
        names."""
        theirs = dict(other.attrs)
        return self.kind == other.kind and all(theirs.get(k) == v for k, v in self.hardware.attrs)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    def to_dict(self) -> dict[str, str | int]:
        return {"kind": self.kind, **dict(self.attrs)}


def make_target(kind: str, attrs: dict[str, str | int]) -> Target:
    return Target(kind, tuple(sorted(attrs.items())))


def target_from_json(text: str) -> Target:
    attrs: dict[str, Any] = json.loads(text)
    return make_target(attrs.pop("kind"), attrs)


def parse_target(text: str) -> Target:
    """One target: a kind or a TVM tag, with attributes or without (``llvm:mcpu=znver5``).

    ``host`` is the CPU of this machine, that is, ``llvm``.

    Raises:
        UsageError: an attribute without a value.
        UnsupportedTarget: no such kind or tag, or one that is not tuned.
    """
    kind, *attributes = text.strip().split(":")
    attrs: dict[str, str | int] = {}
    for attribute in attributes:
        key, equals, value = attribute.partition("=")
        if not (key and equals and value):
            raise UsageError(
                f"target {text!r}: {attribute!r} is not name=value",
                hint="Write attributes as llvm:mcpu=znver5:num-cores=4.",
            )
        attrs[key] = int(value) if value.isdigit() else value
    named = _named(kind, text)
    made = make_target(named.kind, {**dict(named.attrs), **attrs})
    allowed = made.get("precision")
    if made.kind == "llvm" and allowed not in (None, "float32", "bfloat16"):
        raise UnsupportedTarget(
            f"target {text!r}: no precision {allowed!r} is known of processors",
            hint="Write llvm:precision=bfloat16, or leave it away for float32.",
        )
    return made.hardware if attrs.get("precision") == "float32" else made


def _named(kind: str, text: str) -> Target:
    """The target of a name without attributes; `text`: all that was written."""
    if kind == "host":
        kind = "llvm"
    if "/" in kind:
        return _parse_tag(kind)
    if kind not in TUNABLE_KINDS:
        known = kind in _OTHER_TVM_KINDS
        raise UnsupportedTarget(
            f"target {text!r}: "
            + (f"tunefarm does not tune for {kind} yet" if known else "no such target"),
            hint=f"Targets are {', '.join(TUNABLE_KINDS)}, host, a kind with attributes "
            "(llvm:mcpu=znver5) or a TVM tag (nvidia/nvidia-a100).",
        )
    return make_target(kind, {})


def _parse_tag(tag: str) -> Target:
    import tvm

    try:
        target = tvm.target.Target(tag)
    except Exception:
        raise UnsupportedTarget(
            f"target {tag!r}: TVM has no such tag", hint="List them: tvm.target.list_tags()."
        ) from None
    kind = str(target.kind.name)
    if kind not in TUNABLE_KINDS:
        raise UnsupportedTarget(f"target {tag!r}: tunefarm does not tune for {kind} yet")
    wanted = ("arch", "mcpu", "num-cores")
    attrs = {key: target.attrs[key] for key in wanted if key in target.attrs}
    return make_target(kind, {k: v if isinstance(v, int) else str(v) for k, v in attrs.items()})


def parse_targets(text: str) -> tuple[Target, ...]:
    """A comma-separated list, each target once.

    Raises:
        UsageError: the list is empty.
    """
    targets = tuple(dict.fromkeys(parse_target(part) for part in text.split(",") if part.strip()))
    if not targets:
        raise UsageError("--targets is empty", hint="For example: --targets llvm")
    return targets
