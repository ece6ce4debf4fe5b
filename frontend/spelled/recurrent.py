"""RNN, GRU and LSTM, step by step, as ONNX defines them.

What the inputs contribute is one product for all steps; a step is then the product with the state
before it and the gates. All steps are the same few kernels, so a recurrence of a hundred steps has
no more to tune than one of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tunefarm.frontend.spelled.site import WHERE, Site

_ALPHA = {
    "Affine": 1.0,
    "LeakyRelu": 0.01,
    "ThresholdedRelu": 1.0,
    "ScaledTanh": 1.0,
    "HardSigmoid": 0.2,
    "Elu": 1.0,
}
"""Activations with parameters, and the first one's default."""
_BETA = {"Affine": 0.0, "ScaledTanh": 1.0, "HardSigmoid": 0.5}
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("LeakyRelu", "ThresholdedRelu", "Elu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
}
_ACTIVATIONS = (*_ALPHA, "Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")

Activation = Callable[[str], str]


@dataclass(frozen=True)
class _Direction:
    """What one direction of a recurrence works with; states are of shape (1, batch, hidden).

    Attributes:
        weights: of the inputs, for products from the right: (inputs, gates * hidden).
        recurrent: of the state, likewise.
        bias: of the inputs and of the state, (gates * hidden,) each; empty where there are none.
        peepholes: (hidden,) each; empty where there are none.
        activations: in ONNX's order.
    """

    weights: str
    recurrent: str
    bias: tuple[str, str]
    hidden: int
    state: str
    cell: str
    peepholes: list[str]
    activations: list[Activation]
    backwards: bool


@dataclass(frozen=True)
class _Step:
    """How far the state goes: what it was and what its inputs contribute, to what it is."""

    site: Site
    one: _Direction

    def gates(self, together: str, count: int) -> list[str]:
        """The parts of (1, batch, gates * hidden), within the bounds of `clip`."""
        size = self.one.hidden
        parts = [self.site.slice(together, 2, k * size, (k + 1) * size) for k in range(count)]
        return [self.clip(part) for part in parts] if count > 1 else [self.clip(together)]

    def clip(self, name: str) -> str:
        most = self.site.attribute("clip", None)
        return name if most is None else bounded(self.site, name, float(most))

    def product(self, state: str) -> str:
        return self.site.emit("MatMul", state, self.one.recurrent)

    def add(self, first: str, second: str) -> str:
        return self.site.emit("Add", first, second) if second else first

    def multiply(self, first: str, second: str) -> str:
        return self.site.emit("Mul", first, second)


class _Rnn(_Step):
    def __call__(self, given: str, state: str, cell: str) -> tuple[str, str]:
        (act,) = self.one.activations
        return act(*self.gates(self.add(given, self.product(state)), 1)), cell


class _Gru(_Step):
    def __call__(self, given: str, state: str, cell: str) -> tuple[str, str]:
        site, size, (act, other) = self.site, self.one.hidden, self.one.activations
        first = site.slice(given, 2, 0, 2 * size)
        if site.attribute("linear_before_reset", 0):
            moved = self.add(self.product(state), self.one.bias[1])
            together = self.add(first, site.slice(moved, 2, 0, 2 * size))
            update, reset = (act(gate) for gate in self.gates(together, 2))
            moved = self.multiply(reset, site.slice(moved, 2, 2 * size, 3 * size))
        else:
            of_gates, of_state = self._apart
            together = self.add(first, site.emit("MatMul", state, of_gates))
            update, reset = (act(gate) for gate in self.gates(together, 2))
            moved = site.emit("MatMul", self.multiply(reset, state), of_state)
        new = other(self.clip(self.add(site.slice(given, 2, 2 * size, 3 * size), moved)))
        difference = self.multiply(update, site.emit("Sub", state, new))
        return self.add(new, difference), cell

    @cached_property
    def _apart(self) -> tuple[str, str]:
        """The state's weights for the gates and for the new state, once for all steps."""
        size, whole = self.one.hidden, self.one.recurrent
        return self.site.slice(whole, 1, 0, 2 * size), self.site.slice(whole, 1, 2 * size, 3 * size)


class _Lstm(_Step):
    def __call__(self, given: str, state: str, cell: str) -> tuple[str, str]:
        site, (act, inner, outer) = self.site, self.one.activations
        together = self.add(given, self.product(state))
        size, peep = self.one.hidden, self.one.peepholes
        i, o, f, c = (site.slice(together, 2, k * size, (k + 1) * size) for k in range(4))
        if peep:
            i, f = (
                self.add(i, self.multiply(peep[0], cell)),
                self.add(f, self.multiply(peep[2], cell)),
            )
        enters = act(self.clip(i))
        if site.attribute("input_forget", 0):
            stays = site.emit("Sub", _one(site), enters)
        else:
            stays = act(self.clip(f))
        fresh = self.multiply(enters, inner(self.clip(c)))
        cell = self.add(self.multiply(stays, cell), fresh)
        if peep:
            o = self.add(o, self.multiply(peep[1], cell))
        return self.multiply(act(self.clip(o)), outer(cell)), cell


_KINDS: dict[str, tuple[int, type[_Rnn] | type[_Gru] | type[_Lstm], tuple[str, ...]]] = {
    "RNN": (1, _Rnn, ("Tanh",)),
    "GRU": (3, _Gru, ("Sigmoid", "Tanh")),
    "LSTM": (4, _Lstm, ("Sigmoid", "Tanh", "Tanh")),
}
"""Gates, a step, and the default activations."""


def recurrence(site: Site) -> bool:
    """A recurrence over a known number of steps: X (steps, batch, inputs), W (directions, gates *
    hidden, inputs), R (directions, gates * hidden, hidden), B, lengths, states before the first."""
    kind = site.node.op_type
    gates, step_of, _ = _KINDS[kind]
    late = kind == "GRU" and bool(site.attribute("linear_before_reset", 0))
    shape, weights = site.shape(0), site.shape(1)
    if shape is None or weights is None or site.dtype(0) is None:
        return False
    given = site.input(0)
    by_batch = bool(site.attribute("layout", 0))
    if by_batch:
        given, shape = site.emit("Transpose", given, perm=[1, 0, 2]), (shape[1], shape[0], shape[2])
    steps, batch, width = shape
    if not steps or (site.input(4) and site.opset < WHERE):
        return False
    still = _still_going(site, steps, batch)
    rows, states, cells = [], [], []
    for one in _directions(site, weights[0], weights[1] // gates, batch, by_batch):
        flat = site.emit("MatMul", site.reshape(given, steps * batch, width), one.weights)
        for bias in one.bias[: 1 if late else 2]:
            flat = site.emit("Add", flat, bias) if bias else flat
        inputs = site.split(site.reshape(flat, steps, batch, gates * one.hidden), 0, steps)
        step, state, cell = step_of(site, one), one.state, one.cell
        outputs = [""] * steps
        order = range(steps - 1, -1, -1) if one.backwards else range(steps)
        for index in order:
            new, moved = step(inputs[index], state, cell)
            outputs[index] = new
            if still:
                outputs[index] = site.emit("Where", still[index], new, _zero(site))
                new = site.emit("Where", still[index], new, state)
                if cell:
                    moved = site.emit("Where", still[index], moved, cell)
            state, cell = new, moved
        if site.output(0):
            rows.append(site.reshape(site.concat(outputs, 0), steps, 1, batch, one.hidden))
        states.append(state)
        cells.append(cell)
    _give(site, rows, states, cells, by_batch)
    return True


def _give(site: Site, rows: list[str], states: list[str], cells: list[str], by_batch: bool) -> None:
    """Y (steps, directions, batch, hidden), and the last states (directions, batch, hidden)."""
    if rows:
        whole = site.concat(rows, 1)
        site.give(0, site.emit("Transpose", whole, perm=[2, 0, 1, 3]) if by_batch else whole)
    for index, each in ((1, states), (2, cells)):
        if site.output(index):
            whole = site.concat(each, 0)
            site.give(index, site.emit("Transpose", whole, perm=[1, 0, 2]) if by_batch else whole)


def _directions(
    site: Site, count: int, hidden: int, batch: int, by_batch: bool
) -> Iterator[_Direction]:
    gates, _, defaults = _KINDS[site.node.op_type]
    named = [name.decode() for name in site.attribute("activations", [])] or [*defaults] * count
    alphas, betas = (iter(site.attribute(f"activation_{x}", [])) for x in ("alpha", "beta"))
    acts = [_activation(site, name, alphas, betas) for name in named]
    each = len(defaults)
    backwards = site.attribute("direction", b"forward") == b"reverse"

    def part(index: int, number: int) -> str:
        whole = site.split(site.input(index), 0, count)[number]
        return site.squeeze(whole, 0)

    def before(index: int, number: int) -> str:
        """A state, (1, batch, hidden)."""
        name = site.input(index)
        if not name:
            return site.constant([[[0] * hidden] * batch], site.dtype(0))
        if by_batch:
            name = site.emit("Transpose", name, perm=[1, 0, 2])
        return site.split(name, 0, count)[number]

    for number in range(count):
        bias = ("", "")
        if site.input(3):
            first, second = site.split(part(3, number), 0, 2, gates * hidden)
            bias = (first, second)
        is_lstm = site.node.op_type == "LSTM"
        yield _Direction(
            weights=site.emit("Transpose", part(1, number), perm=[1, 0]),
            recurrent=site.emit("Transpose", part(2, number), perm=[1, 0]),
            bias=bias,
            hidden=hidden,
            state=before(5, number),
            cell=before(6, number) if is_lstm else "",
            peepholes=site.split(part(7, number), 0, 3, hidden) if site.input(7) else [],
            activations=acts[number * each : (number + 1) * each],
            backwards=backwards or number == 1,
        )


def _still_going(site: Site, steps: int, batch: int) -> list[str]:
    """Of each step, which rows of a batch have it: (1, batch, 1); nothing where all have all."""
    lengths = site.value(4)
    if not site.input(4) or (lengths is not None and int(lengths.min()) >= steps):
        return []
    column = site.reshape(site.input(4), 1, batch, 1)
    return [
        site.emit("Less", site.constant([[[index]]], "int32"), column) for index in range(steps)
    ]


def _activation(
    site: Site, name: str, alphas: Iterator[float], betas: Iterator[float]
) -> Activation:
    known = {one.lower(): one for one in _ACTIVATIONS}
    if name.lower() not in known:
        site.refuse(f"has an activation {name!r}, which the standard does not know")
    name = known[name.lower()]
    alpha = next(alphas, _ALPHA[name]) if name in _ALPHA else 0.0
    beta = next(betas, _BETA[name]) if name in _BETA else 0.0
    given = {"alpha": alpha, "beta": beta}
    attributes: dict[str, Any] = {key: given[key] for key in _ATTRIBUTES.get(name, ())}

    def act(value: str) -> str:
        if name == "Affine":
            scaled = site.emit("Mul", value, site.constant(alpha, site.dtype(0)))
            return site.emit("Add", scaled, site.constant(beta, site.dtype(0)))
        if name == "ScaledTanh":
            scaled = site.emit("Mul", value, site.constant(beta, site.dtype(0)))
            bent = site.emit("Tanh", scaled)
            return site.emit("Mul", bent, site.constant(alpha, site.dtype(0)))
        return site.emit(name, value, **attributes)

    return act


def bounded(site: Site, name: str, most: float) -> str:
    """Between `-most` and `most`."""
    if site.opset < 11:
        return site.emit("Clip", name, min=-most, max=most)
    dtype = site.dtype(0)
    return site.emit("Clip", name, site.constant(-most, dtype), site.constant(most, dtype))


def _one(site: Site) -> str:
    return site.constant(1, site.dtype(0))


def _zero(site: Site) -> str:
    return site.constant(0, site.dtype(0))
