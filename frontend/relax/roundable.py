"""What of a network of float32 may be in bfloat16, where its factors may be rounded (needs TVM).

Products with constants, and what they read: on the way from where that is made, whatever only moves
numbers or takes the largest makes the same of rounded ones. Convolutions of one channel at a time
in steps, which do little for what they read, read bfloat16 too, for it is half of the bytes, and
multiply in float32; those without steps would take longer to make them wide than they save.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax

from tunefarm.frontend.dtypes import BFLOAT16
from tunefarm.frontend.relax.calls import is_call, shape_of, uses_of
from tunefarm.frontend.relax.halos import GO_ON, MOST, gains
from tunefarm.frontend.relax.integer_products import HALVES, NOTHING, Room
from tunefarm.frontend.relax.merged_groups import TOGETHER, merged
from tunefarm.frontend.relax.whole import channels_last, window_of

CONVOLUTION = "relax.nn.conv2d"
MANY = 64
"""Columns that are worth some of zeros beside them, up to whole vectors."""
VECTOR = 4
"""What fewer columns are a multiple of."""
HALF = 8
"""Columns that are worth as many zeros, for a whole matrix register."""
_MOVES = ("relax.permute_dims", "relax.reshape", "relax.concat", "relax.nn.max_pool2d")
_SPLIT = "relax.split"
_SHOW = (
    *(*_MOVES, "relax.squeeze", "relax.expand_dims", "relax.strided_slice", _SPLIT),
    *("relax.broadcast_to", "relax.flatten", "relax.take", "relax.flip", "relax.astype"),
)
"""What has numbers of its argument in its result."""


@dataclass(frozen=True)
class Roundable:
    """Calls and variables of one function.

    Attributes:
        products: with constants, of whole registers or vectors.
        casts: to bfloat16, of what functions read so (`relax.attention`).
        singles: convolutions of one channel at a time, in steps, of what nothing else reads.
        tensors: variables that these read, or that what they read is moved from; none whose numbers
            are in a result: nobody has allowed to round those.
        room: of those, images that are stored with zeros around them, and how many: where
            convolutions alone read them, and whatever makes them can go on with it.
    """

    products: frozenset[Any]
    casts: frozenset[Any]
    singles: frozenset[Any]
    tensors: frozenset[Any]
    room: Mapping[Any, Room]


def roundable(function: Any, matrices: bool) -> Roundable:
    """What there is in a function whose every tensor has one name.

    Args:
        matrices: products are done in matrix registers, and not in vectors alone.
    """
    bound = {one.var: one.value for block in function.body.blocks for one in block.bindings}
    products = frozenset(call for call in bound.values() if _is_product(call, matrices))
    calls = [one for one in bound.values() if isinstance(one, relax.Call)]
    given = {one for call in calls if _is_of_function(call) for one in call.args}
    casts = frozenset(call for var, call in bound.items() if var in given and _is_rounding(call))
    singles = frozenset(call for call in bound.values() if _is_of_single_channels(call))
    readers: dict[Any, list[Any]] = {}
    for call in products | singles:
        readers.setdefault(call.args[0], []).append(call)
    uses = uses_of(function)
    alone = {image for image, reading in readers.items() if uses[image] == len(reading)}
    singles = frozenset(call for call in singles if call.args[0] in alone)
    result = bound.get(function.body.body, function.body.body)
    kept = result.fields if isinstance(result, relax.Tuple) else [function.body.body]
    read = _paths((call.args[0] for call in products | singles | casts), bound, _MOVES)
    tensors = read - _paths(kept, bound, _SHOW)
    room = {}
    for image in tensors & alone:
        makes = is_call(bound.get(image), *GO_ON) and is_filled(image)
        if makes and (around := _room(image, readers[image], products)):
            room[image] = around
    return Roundable(products, casts, singles, frozenset(tensors), room)


def moved(value: Any) -> list[Any]:
    """What a call of float32 moves, or takes the largest of; nothing where it does something
    else."""
    return _arguments(value, _MOVES)


def _arguments(call: Any, operators: Collection[str]) -> list[Any]:
    """Of a call of one of these, in float32, the tensors; none where they are not told apart."""
    if not is_call(call, *operators):
        return []
    first = call.args[0]
    fields = list(first.fields) if isinstance(first, relax.Tuple) else [first]
    return fields if all(dtype_of(one) == "float32" for one in fields) else []


def dtype_of(value: Any) -> str:
    """Of a tensor; nothing of a tuple."""
    return str(getattr(value.ty, "dtype", ""))


def is_filled(data: Any) -> bool:
    """Whether its channels, or terms, are whole groups."""
    return bool(int(data.ty.shape[-1]) % HALVES.filled == 0)


def _paths(values: Iterable[Any], bound: Mapping[Any, Any], operators: Collection[str]) -> set[Any]:
    """The variables among the values, and those that `operators` make them from."""
    found, ahead = set[Any](), list(values)
    while ahead:
        one = ahead.pop()
        if isinstance(one, relax.Var) and one not in found:
            value = bound.get(one)
            found.add(one)
            ahead += _arguments(value, operators)
            if isinstance(value, relax.TupleGetItem) and _SPLIT in operators:
                ahead.append(value.tuple_value)
    return found


def _room(image: Any, reading: list[Any], products: frozenset[Any]) -> Room | None:
    """As much as the one wants that wants most; None where none of them gains, or none that
    multiplies bfloat16 does and it is much (`halos.MOST`)."""
    if not all(is_call(call, CONVOLUTION) for call in reading):
        return None
    above, left, below, right = map(
        max, NOTHING, *(window_of(call.attrs).padding for call in reading)
    )
    _, height, width, _ = image.ty.shape
    inside, whole = height * width, (above + height + below) * (left + width + right)
    if whole == inside:
        return None
    padded = [call for call in reading if any(window_of(call.attrs).padding)]
    gain = any(call in products or gains(call) for call in padded)
    few = whole - inside <= MOST * inside or any(call in products for call in padded)
    return (above, left, below, right) if gain and few else None


def filled_columns(columns: int, matrices: bool) -> int | None:
    """How many zeros are put beside as many columns of a product; None where it stays in
    float32."""
    rest = -columns % HALVES.columns
    if columns >= (HALF if matrices else MANY):
        return rest
    return 0 if rest == 0 or (columns % VECTOR == 0 and not matrices) else None


def _is_product(call: Any, matrices: bool) -> bool:
    """Whether it is one of rows with constants, in whole registers or vectors."""
    if not _reads_constants(call, CONVOLUTION, "relax.matmul"):
        return False
    sizes = shape_of(call.args[1])
    assert sizes is not None, "a constant's"
    if filled_columns(sizes[-1], matrices) is None:
        return False
    if is_call(call, "relax.matmul"):
        return len(sizes) == 2
    return channels_last(call) and merged_groups(call, matrices) is not None


def merged_groups(call: Any, matrices: bool) -> int | None:
    """How many groups of a convolution, channels last, are to be one; None where it stays in
    float32: several do without matrix registers."""
    groups, sizes, made = int(call.attrs.groups), shape_of(call.args[1]), shape_of(call)
    assert sizes is not None, "a constant's"
    if groups == 1:
        return 1
    if not matrices or made is None or prod(made[:-1]) == 1:
        return None  # without rows there are no matrix registers for it
    terms, columns = sizes[-2], sizes[-1] // groups
    return merged(groups, terms, columns, HALVES.columns, HALVES.filled, TOGETHER)


def _is_of_function(call: Any) -> bool:
    """Whether it calls one of the module's own."""
    return isinstance(call.op, tvm.ir.GlobalVar)


def _is_rounding(call: Any) -> bool:
    """Whether it is a cast of a variable of float32 to bfloat16."""
    if not is_call(call, "relax.astype") or not isinstance(call.args[0], relax.Var):
        return False
    return (dtype_of(call.args[0]), dtype_of(call)) == ("float32", BFLOAT16)


def _is_of_single_channels(call: Any) -> bool:
    """Whether it is such a convolution, in steps."""
    if not _reads_constants(call, CONVOLUTION) or not channels_last(call):
        return False
    image, sizes = shape_of(call.args[0]), shape_of(call.args[1])
    assert sizes is not None, "a constant's"
    groups = int(call.attrs.groups)
    single = image is not None and groups == image[-1] == sizes[-1] and prod(sizes[:-1]) > 1
    strided = any(int(step) > 1 for step in call.attrs.strides)
    return single and strided and groups > 1


def _reads_constants(call: Any, *operators: str) -> bool:
    """Whether it is a call of one of these, of a variable and constants in float32."""
    if not is_call(call, *operators):
        return False
    data, weights = call.args
    if not isinstance(data, relax.Var) or not isinstance(weights, tvm.ir.GenericConst):
        return False
    known = shape_of(data) is not None and shape_of(call) is not None
    return known and {dtype_of(one) for one in (data, weights, call)} == {"float32"}
