"""Attention a block of queries at a time: their scores stay in a core's cache.

Between two kernels the scores of all queries by all keys would go through memory: to be stored, for
the softmax to be read and stored, and for the second product to be read. Here they are those of a
block of queries, in rows as long as whole tiles of keys. The keys are packed in tiles beforehand;
weights are exponentials of how much less than its row's largest a score is; and what they yield of
the values is divided by their sum at the end (as in Dao et al., "FlashAttention", NeurIPS 2022; the
rows here are whole, so nothing has to be corrected on the way).

As in `winograd`, this is another text of the same kernel; a schedule of it follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlock
from tvm_ffi import structural_map

from tunefarm.frontend.relax.exponentials import exponential
from tunefarm.search.kernels.splice import renamed
from tunefarm.search.spaces.attention_tile.attention import Attention, attention_of

KEYS, VALUES = "row_keys", "row_values"
PRODUCTS, SCORES = "row_products", "row_scores"
TOPS, TOP, WEIGHTS = "row_tops", "row_top", "row_weights"
TOTALS, TOTAL, MIXED, MEAN = "row_totals", "row_total", "row_mixed", "row_mean"
"""Names of the stages that `in_rows` makes, in the order of the text."""
_LEAST = -3.4028234663852886e38


def in_rows(workload: Any, columns: int) -> Any:
    """`workload` rewritten with keys in tiles of `columns`; its arguments stay as they are.

    Raises:
        ValueError: it is no attention in single precision, or its keys fill no whole tiles and its
            scores are more than products by a factor.
    """
    one = attention_of(workload, ("float32",))
    if one is None or not fits(one, columns):
        raise ValueError(f"no attention with keys in tiles of {columns}")
    function = workload["main"]
    *given, result = function.params
    assert result.same_as(one.result), "what is computed is the last argument"
    made = te.create_prim_func(_stages(one, given, columns), index_dtype_override="int64")
    *tensors, means = made.params
    body = renamed(made.body, dict(zip(tensors, given, strict=True)))
    return type(workload)({"main": function.with_body(_stored(body, means, one))})


def _stored(body: Any, means: Any, one: Attention) -> Any:
    """The text with the last stage's elements where the kernel has them."""
    variables = [v.var for v in one.second.node.iter_vars][:-1]

    def last(block: Any) -> Any:
        if block.name_hint != MEAN:
            return block
        axes = [v.var for v in block.iter_vars]
        places = [renamed(p, dict(zip(variables, axes, strict=True))) for p in one.places]
        where = tirx.BufferRegion(one.result, [Range.from_min_extent(place, 1) for place in places])
        store = tirx.BufferStore(one.result, block.body.value, places)
        return SBlock(block.iter_vars, block.reads, [where], MEAN, store)

    return structural_map(body, (SBlock, last))


def fits(one: Attention, columns: int) -> bool:
    """Whether keys that fill no whole tiles can be told from those that are there: where there are
    more of them, a score of none is the least there is. (Should a row's own scores all be minus
    infinity, which without a mask only products beyond all numbers are, it yields nought where
    three kernels yield no number.)"""
    _, keys, _, _ = one.sizes
    return keys % columns == 0 or one.factor is not None


def _stages(one: Attention, arguments: Sequence[Any], columns: int) -> list[Any]:
    """The arguments as tensors, and the means of the values."""
    given = [
        (argument, te.placeholder(argument.shape, str(argument.dtype), name=f"given{place}"))
        for place, argument in enumerate(arguments)
    ]

    def there(value: Any, at: dict[Any, Any], own: Sequence[tuple[Any, Any]] = ()) -> Any:
        """`value` at a place, of the arguments as they are here; of some buffers something else."""
        here = {variable: getattr(index, "var", index) for variable, index in at.items()}

        def read(load: Any) -> Any:
            for buffer, instead in own:
                if load.source.same_as(buffer):
                    return instead
            return next(t for p, t in given if load.source.same_as(p))(*load.indices)

        return structural_map(renamed(value, here), (TensorLoad, read))

    first = [v.var for v in one.first.node.iter_vars]
    second = [v.var for v in one.second.node.iter_vars]
    batch = len(one.batch)
    heads = [axis.extent for axis in one.first.axes[:batch]]
    rows, keys, depth, wide = one.sizes
    tiles = -(-keys // columns)

    def of_operand(operand: Any, at: dict[Any, Any]) -> Any:
        value = there(tirx.BufferLoad(operand.buffer, list(operand.indices)), at)
        if operand.condition is None:
            return value
        return tirx.if_then_else(there(operand.condition, at), value, tirx.const(0.0, "float32"))

    def packed(*at: Any) -> Any:
        *head, tile, deep, lane = at
        key = tile * columns + lane
        value = of_operand(
            one.keys, dict(zip(first, [*head, first[batch], key, deep], strict=True))
        )
        if keys % columns == 0:
            return value
        return tirx.if_then_else(key < keys, value, tirx.const(0.0, "float32"))

    key_tiles = te.compute((*heads, tiles, depth, columns), packed, name=KEYS)
    deep = te.reduce_axis((0, depth), name="deep")

    def product(*at: Any) -> Any:
        *head, row, tile, lane = at
        query = of_operand(
            one.queries, dict(zip(first, [*head, row, first[-2], deep], strict=True))
        )
        return te.sum(query * key_tiles(*head, tile, deep, lane), deep)

    across = (*heads, rows, tiles, columns)
    products = te.compute(across, product, name=PRODUCTS)

    def score(*at: Any) -> Any:
        *head, row, tile, lane = at
        key = tile * columns + lane
        buffer = one.first.node.body.buffer
        place = dict(zip(first[:-1], [*head, row, key], strict=True))
        value = there(one.score, place, [(buffer, products(*at))])
        if keys % columns == 0:
            return value
        return tirx.Select(key < keys, value, tirx.const(_LEAST, "float32"))

    scores = te.compute(across, score, name=SCORES)
    lanes = (*heads, rows, columns)

    def folded(tensor: Any, reduce: Any, partial: str, whole: str) -> Any:
        """Over the keys of a row: each lane's first, then over the lanes."""
        tile = te.reduce_axis((0, tiles), name="tile")
        lane = te.reduce_axis((0, columns), name="lane")
        parts = te.compute(
            lanes, lambda *at: reduce(tensor(*at[:-1], tile, at[-1]), tile), name=partial
        )
        return te.compute(lanes[:-1], lambda *at: reduce(parts(*at, lane), lane), name=whole)

    top = folded(scores, te.max, TOPS, TOP)
    weights = te.compute(across, lambda *at: exponential(scores(*at) - top(*at[:-2])), name=WEIGHTS)
    total = folded(weights, te.sum, TOTALS, TOTAL)
    key = te.reduce_axis((0, keys), name="key")
    panel = next(size for size in (16, 8, 4, 2, 1) if wide % size == 0)

    def values(*at: Any) -> Any:
        *head, number, row, lane = at
        place = [*head, second[batch], number * panel + lane, row]
        return of_operand(one.values, dict(zip(second, place, strict=True)))

    value_panels = te.compute((*heads, wide // panel, keys, panel), values, name=VALUES)

    def mix(*at: Any) -> Any:
        *head, row, place = at
        value = value_panels(*head, place // panel, key, place % panel)
        return te.sum(weights(*head, row, key // columns, key % columns) * value, key)

    mixed = te.compute((*heads, rows, wide), mix, name=MIXED)

    def mean(*at: Any) -> Any:
        weight = total(*at[:-1])
        value = mixed(*at) / weight
        if one.guarded:
            value = tirx.Select(weight > 0, value, tirx.const(0.0, "float32"))
        buffer = one.second.node.body.buffer
        return there(one.finished, dict(zip(second[:-1], at, strict=True)), [(buffer, value)])

    means = te.compute((*heads, rows, wide), mean, name=MEAN)
    return [*(tensor for _, tensor in given), means]
