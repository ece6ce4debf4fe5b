"""Reading PTX, NVIDIA's assembly of virtual registers, as far as its compiler writes it.

The language: NVIDIA, Parallel Thread Execution ISA, version 9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tunefarm.measure.cuda.emulator.faults import Unsupported


@dataclass(frozen=True)
class Register:
    """`negated`: a predicate that is asked for its contrary."""

    number: int
    negated: bool = False


@dataclass(frozen=True)
class Literal:
    """A number as it is written."""

    text: str


@dataclass(frozen=True)
class Symbol:
    """Of a variable, a parameter, a label or a special register (``%tid.x``)."""

    name: str


@dataclass(frozen=True)
class Address:
    base: Register | Symbol | Literal
    offset: int


@dataclass(frozen=True)
class Vector:
    parts: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """Two results of one instruction, ``a|b``."""

    first: Operand
    second: Operand


Operand = Register | Literal | Symbol | Address | Vector | Pair


@dataclass(frozen=True)
class Instruction:
    """`parts`: of its name, at the dots; `guard`: the predicate under which it happens."""

    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    text: str


@dataclass(frozen=True)
class Variable:
    """Bytes in shared or local memory; `size` is 0 for what the launch decides."""

    name: str
    size: int
    align: int


@dataclass
class Kernel:
    """One entry.

    Attributes:
        parameters: (name, bytes) in order.
        registers: type of each, by number.
        labels: index of the instruction that follows each.
        threads: of a block at the most, 0 where nothing is said.
        cluster: neighbours along x that are launched together.
    """

    name: str
    parameters: list[tuple[str, int]] = field(default_factory=list)
    registers: list[str] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    shared: list[Variable] = field(default_factory=list)
    local: list[Variable] = field(default_factory=list)
    threads: int = 0
    cluster: int = 1


@dataclass
class Module:
    """`constants`: variables in global or constant memory, with what they hold at first."""

    kernels: dict[str, Kernel]
    constants: dict[str, bytes]


SIZES = {
    "pred": 1,
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    "f16": 2,
    "bf16": 2,
    "f16x2": 4,
    "bf16x2": 4,
    "tf32": 4,
    "f32": 4,
    "f64": 8,
    "b128": 16,
}
"""Bytes of a value of each type."""

_SPACES = ("global", "shared", "local", "param", "const")

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)([^{]*)\{", re.S)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?")
_VARIABLE = re.compile(
    r"\.(shared|local|global|const)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)"
    r"(?:\[(\d*)\])?\s*(?:=\s*(.*))?$",
    re.S,
)
_LABEL = re.compile(r"\s*([$\w]+):(?!:)")
_MAXIMUM = re.compile(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
_CLUSTER = re.compile(r"\.reqnctapercluster\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")


def parse(text: str) -> Module:
    """
    Raises:
        Unsupported: functions that are called, or what is not understood.
    """
    text = re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", text), flags=re.S)
    kernels, outside, at = {}, [], 0
    for entry in _ENTRY.finditer(text):
        outside.append(text[at : entry.start()])
        end = _closing(text, entry.end())
        kernels[entry[1]] = _Reader(entry[1], entry[2], entry[3]).read(text[entry.end() : end])
        at = end + 1
    outside.append(text[at:])
    constants: dict[str, bytes] = {}
    for statement in "".join(outside).split(";"):
        found = _VARIABLE.search(statement.strip())
        if found is None:
            continue
        variable = _variable(found)
        if found[1] == "shared":
            for kernel in kernels.values():
                kernel.shared.append(variable)
        else:
            constants[variable.name] = _initial(found[6], found[3], variable.size)
    return Module(kernels, constants)


def _closing(text: str, start: int) -> int:
    depth = 1
    for found in re.finditer(r"[{}]", text[start:]):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return start + found.start()
    raise Unsupported("a kernel without an end")


def _variable(found: re.Match[str]) -> Variable:
    each = SIZES[found[3]]
    return Variable(
        found[4], each * int(found[5] or 0 if found[5] is not None else 1), int(found[2] or each)
    )


def _initial(text: str | None, kind: str, size: int) -> bytes:
    if text is None:
        return bytes(size)
    numbers = [int(one, 0) for one in text.strip(" {}\n").split(",")]
    each = SIZES[kind]
    return b"".join(n.to_bytes(each, "little", signed=n < 0) for n in numbers).ljust(size, b"\0")


class _Reader:
    """Reads one kernel's body, whose braces are scopes with names of their own."""

    def __init__(self, name: str, parameters: str, limits: str) -> None:
        self._kernel = Kernel(name)
        for kind, parameter, count in _PARAMETER.findall(parameters):
            self._kernel.parameters.append((parameter, SIZES[kind] * int(count or 1)))
        if (found := _MAXIMUM.search(limits)) is not None:
            self._kernel.threads = int(found[1]) * int(found[2] or 1) * int(found[3] or 1)
        if (found := _CLUSTER.search(limits)) is not None:
            if (found[2] or "1", found[3] or "1") != ("1", "1"):
                raise Unsupported(f"{name}: {found[0]}")
            self._kernel.cluster = int(found[1])
        self._scopes: list[dict[str, Register]] = [{}]
        self._labels: list[tuple[int, dict[str, int]]] = [(0, self._kernel.labels)]

    def read(self, body: str) -> Kernel:
        for statement in _statements(body):
            if statement == "{":
                self._scopes.append({})
                self._labels.append((len(self._kernel.instructions), {}))
            elif statement == "}":
                self._close()
            elif (label := _LABEL.fullmatch(statement)) is not None:
                self._label(label[1])
            elif statement.startswith("."):
                self._declare(statement)
            else:
                self._kernel.instructions.append(self._instruction(statement))
        return self._kernel

    def _label(self, name: str) -> None:
        self._labels[-1][1][name] = len(self._kernel.instructions)

    def _close(self) -> None:
        """Leave a scope: its labels, which others may have as well, get names of their own."""
        self._scopes.pop()
        start, labels = self._labels.pop()
        code = self._kernel.instructions
        for name, place in labels.items():
            own = Symbol(f"{name}@{start}")
            self._kernel.labels[own.name] = place
            for at in range(start, len(code)):
                if Symbol(name) in code[at].operands:
                    changed = tuple(own if o == Symbol(name) else o for o in code[at].operands)
                    code[at] = replace(code[at], operands=changed)

    def _declare(self, statement: str) -> None:
        if statement.startswith(".reg"):
            _, kind, names = statement.split(None, 2)
            for name in names.split(","):
                self._registers(kind.lstrip("."), name.strip())
        elif (found := _VARIABLE.match(statement)) is not None:
            place = self._kernel.shared if found[1] == "shared" else self._kernel.local
            place.append(_variable(found))
        elif not statement.startswith((".pragma", ".loc", ".branchtargets")):
            raise Unsupported(f"{self._kernel.name}: {statement}")

    def _registers(self, kind: str, name: str) -> None:
        many = re.fullmatch(r"([%\w$]+)<(\d+)>", name)
        names = [f"{many[1]}{n}" for n in range(int(many[2]))] if many else [name]
        for one in names:
            self._scopes[-1][one] = Register(len(self._kernel.registers))
            self._kernel.registers.append(kind)

    def _instruction(self, statement: str) -> Instruction:
        guard, text = None, statement
        if text.startswith("@"):
            said, text = text.split(None, 1)
            guard = self._register(said[1:])
        name, _, rest = text.partition(" ") if " " in text else (text, "", "")
        operands = tuple(self._operand(one) for one in _split(rest))
        return Instruction(tuple(name.split(".")), operands, guard, statement)

    def _operand(self, text: str) -> Operand:
        text = text.strip()
        if text.startswith("{"):
            return Vector(tuple(self._operand(one) for one in _split(text[1:-1])))
        if text.startswith("["):
            return self._address(text[1:-1])
        if "|" in text:
            first, second = text.split("|")
            return Pair(self._operand(first), self._operand(second))
        if text.startswith("!"):
            return replace(self._register(text[1:]), negated=True)
        if re.match(r"-?\d", text):
            return Literal(text)
        for scope in reversed(self._scopes):
            found = scope.get(text)
            if found is not None:
                return found
        return Symbol(text)

    def _register(self, text: str) -> Register:
        found = self._operand(text)
        if not isinstance(found, Register):
            raise Unsupported(f"{self._kernel.name}: {text} is no register")
        return found

    def _address(self, text: str) -> Operand:
        if "," in text:  # of a tensor: [map, {coordinates}]
            return Vector(tuple(self._operand(one) for one in _split(text)))
        base, sign, offset = text.partition("+")
        number = int(offset.strip(), 0) if sign else 0
        found = self._operand(base)
        assert isinstance(found, Register | Symbol | Literal), text
        return Address(found, number)


def _statements(body: str) -> Iterator[str]:
    at = 0
    while at < len(body):
        if body[at].isspace() or body[at] == ";":
            at += 1
        elif body[at] in "{}":
            yield body[at]
            at += 1
        elif (label := _LABEL.match(body, at)) is not None:
            yield label[0].strip()
            at = label.end()
        else:
            end = body.index(";", at)
            yield " ".join(body[at:end].split())
            at = end + 1


def _split(text: str) -> list[str]:
    """At commas that stand in no brackets."""
    found, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "{[") - (character in "}]")
        if character == "," and depth == 0:
            found.append(text[start:at])
            start = at + 1
    return [*found, text[start:]] if text.strip() else []


def space_of(parts: tuple[str, ...]) -> str:
    """The kind of memory that an instruction names, ``generic`` where its addresses tell."""
    names = {part.split("::")[0] for part in parts}
    return next((one for one in _SPACES if one in names), "generic").replace("const", "global")
