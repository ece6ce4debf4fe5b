"""Attention in a network becomes one kernel, which computes what the network did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tunefarm.devices.gpu import completed
from tunefarm.devices.target import parse_target
from tunefarm.frontend.dtypes import rounding
from tunefarm.frontend.importer import ImportRequest, run_import
from tunefarm.frontend.onnx.half import narrowed
from tunefarm.frontend.onnx.writer import Writer
from tunefarm.frontend.program import Program, load_program

pytestmark = pytest.mark.tvm

GUARDED = ("blind", "seeing", "ones", "weighed")
"""Kinds of networks that look at whether weights are numbers."""
TOKENS, HEADS, SIZE = 24, 3, 16
HIDDEN = HEADS * SIZE


def network(kind: str) -> onnx.ModelProto:
    """From hidden states to hidden states, through attention as exporters write it.

    Args:
        kind: ``plain`` (scores divided), ``batches`` (of three dimensions, as bmm has them),
            ``scaled`` (queries and keys, before their product), ``masked`` (another tensor
            added), ``factor`` and ``by`` (scores multiplied, from either side), ``more`` (a number
            added), ``less`` (scores multiplied by a negative one), ``told`` (by a
            number that only a run tells), ``chosen`` (scores of the later replaced), ``shared``
            (keys are values as well), ``turned`` (terms of a query, a key and a value do not lie
            side by side), ``packed`` (all from one product, that is split),
            ``grouped`` (one head of keys and values for all),
            ``seen`` (its weights are used twice), ``few`` (a handful of queries), ``wide`` (heads
            of 256), ``blind`` (as PyTorch's newer exporter has it: queries and keys are scaled, and
            weights that are no numbers made nought; by a mask queries see what is earlier, and the
            third nothing), ``seeing`` (the same with a mask that masks nothing), ``ones`` (weights
            that are no numbers made one instead), ``weighed`` (guarded weights that are used before
            the guard as well), ``deeper`` (all scaled by a number that has an axis more), ``tiny``
            (queries and keys scaled by numbers whose product single precision does not hold).
    """
    writer = Writer(3)
    size, heads = (256, 1) if kind == "wide" else (SIZE, HEADS)
    hidden = size * heads
    rows = 5 if kind == "few" else TOKENS

    def dense(x: str, columns: int = hidden) -> str:
        weights = writer.constant(writer.normal(HIDDEN, columns) / np.sqrt(HIDDEN))
        return writer.node("MatMul", x, weights)

    def split(x: str, count: int, order: list[int], own: int = heads) -> str:
        sizes = [count, own, size] if kind == "deeper" else [1, count, own, size]
        apart = writer.node("Reshape", x, writer.integers(sizes))
        if kind == "deeper":
            apart = writer.node("Mul", apart, writer.constant(np.full([1] * 4, size**-0.25)))
        turned = writer.node("Transpose", apart, perm=order)
        if own < heads:
            sizes = [(1, count, heads, size)[n] for n in order]
            return writer.node("Expand", turned, writer.integers(sizes))
        if kind != "batches":
            return turned
        sizes = [(1, count, heads, size)[n] for n in order[1:]]
        return writer.node("Reshape", turned, writer.integers(sizes))

    x = "hidden"
    some = x
    if kind == "few":
        some = writer.node("Slice", x, *(writer.integers([n]) for n in (0, rows, 1)))
    if kind == "packed":
        many = writer.constant(writer.normal(HIDDEN, 3 * hidden) / np.sqrt(HIDDEN))
        wide = writer.node("MatMul", x, many)
        ends = [writer.integers([hidden * n]) for n in range(4)]
        axis = writer.integers([2])
        q, kept, v = (writer.node("Slice", wide, ends[n], ends[n + 1], axis) for n in range(3))
    else:
        q, kept = dense(some), dense(x)
        v = kept if kind == "shared" else dense(x)
    own = heads
    if kind == "grouped":
        own, kept, v = 1, dense(x, size), dense(x, size)
    if kind == "turned":
        apart = writer.integers([1, heads, size, TOKENS])
        q, k, v = (writer.node("Reshape", one, apart) for one in (q, kept, v))
        q, v = (writer.node("Transpose", one, perm=[0, 1, 3, 2]) for one in (q, v))
    else:
        q, v = split(q, rows, [0, 2, 1, 3]), split(v, TOKENS, [0, 2, 1, 3], own)
        k = split(kept, TOKENS, [0, 2, 3, 1], own)
    if kind in ("scaled", "tiny", *GUARDED):
        root = writer.constant(1e-25 if kind == "tiny" else size**-0.25)
        q, k = (writer.node("Mul", one, root) for one in (q, k))
    scores = writer.node("MatMul", q, k)
    if kind in ("plain", "seen", "few", "wide"):
        scores = writer.node("Div", scores, writer.constant(size**0.5))
    if kind in ("factor", "by"):
        sides = [scores, writer.constant(size**-0.5)]
        scores = writer.node("Mul", *(sides if kind == "by" else sides[::-1]))
    if kind == "more":
        scores = writer.node("Add", scores, writer.constant(1.0))
    if kind == "less":
        scores = writer.node("Mul", scores, writer.constant(-0.25))
    if kind == "told":
        scores = writer.node("Mul", scores, writer.node("ReduceMax", x, keepdims=0))
    if kind == "masked":
        scores = writer.node("Mul", writer.constant(size**-0.5), scores)
        scores = writer.node("Add", scores, writer.constant(writer.normal(1, 1, rows, TOKENS)))
    if kind == "chosen":
        earlier = np.tril(np.ones((1, 1, rows, TOKENS)))
        there = writer.node("Cast", writer.constant(earlier), to=onnx.TensorProto.BOOL)
        scores = writer.node("Where", there, scores, writer.constant(-1e4))
    if kind in GUARDED:
        scores = writer.node("Add", scores, writer.constant(mask(kind, rows)))
    weights = writer.node("Softmax", scores, axis=-1)
    plain = weights
    if kind in GUARDED:
        told = writer.node("IsNaN", weights)
        instead = writer.constant(1.0 if kind == "ones" else 0.0)
        weights = writer.node("Where", told, instead, weights)
    mixed = writer.node("MatMul", weights, v)
    if kind == "batches":
        mixed = writer.node("Reshape", mixed, writer.integers([1, heads, rows, size]))
    mixed = writer.node("Transpose", mixed, perm=[0, 2, 1, 3])
    result = writer.node("Reshape", mixed, writer.integers([1, rows, hidden]))
    if kind in ("seen", "weighed"):
        result = writer.node("Add", result, writer.node("ReduceMean", plain, keepdims=0))
    given, made = (1, TOKENS, HIDDEN), (1, rows, hidden)
    return writer.model(kind, ("hidden", given), ("result", result, made), opset=13)


def mask(kind: str, rows: int) -> np.ndarray:
    """What is added to scores; shape ``(1, 1, rows, TOKENS)``."""
    sees = np.tril(np.ones((1, 1, rows, TOKENS), bool))
    sees[..., 2, :] = kind == "weighed"  # which would be no number throughout
    return np.where(sees | (kind == "seeing"), 0.0, -np.inf).astype(np.float32)


def imported(kind: str, directory: Path, dtype: str, target: str) -> Program:
    path = directory / "m.onnx"
    model = network(kind)
    if dtype != "float32":
        model = narrowed(model, dtype)
    path.write_bytes(model.SerializeToString())
    run_import(ImportRequest(path, directory / "program", parse_target(target)))
    return load_program(directory / "program")


def attentions(program: Program) -> int:
    return sum(task.weight for task in program.tasks if task.name == "attention")


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("plain", ["matmul_cast"] * 3),
        ("batches", ["matmul_cast"] * 3),
        ("scaled", ["matmul_cast"] * 3),
        ("blind", ["matmul_cast"] * 3),
        ("seeing", ["matmul_cast"] * 3),
        ("deeper", ["matmul_cast"] * 3 + ["reshape_multiply"] * 3),
        ("masked", ["matmul_cast"] * 3),
        ("chosen", ["matmul_cast"] * 3),
        ("factor", ["matmul_cast"] * 3),
        ("by", ["matmul_cast"] * 3),
        ("shared", ["matmul_cast"] * 2),
        ("packed", ["matmul_cast"]),
        ("grouped", ["matmul_cast"] * 3),
    ],
)
def test_attention_is_one_kernel_that_computes_what_it_did(
    tmp_path: Path, kind: str, others: list[str]
) -> None:
    """Heads are moved by none beside it, and it has a family of its own."""
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space
    from tunefarm.search.spaces.attention_tile.attention import attention_of

    target = "cuda:arch=sm_80"
    program = imported(kind, tmp_path, "float16", target)
    names = [task.name for task in program.tasks for _ in range(task.weight)]
    assert sorted(names) == sorted(["attention", *others])
    (task,) = (one for one in program.tasks if one.name == "attention")
    workload = replay.load_workload(program.workload(task.id))
    space = design_space(workload, parse_target(target))
    assert {space.describe(one.point).family for one in space.modelled()} == {"attention-tile"}
    one = attention_of(workload)
    assert one.guarded == (kind in ("blind", "seeing"))
    others = {"masked": None, "chosen": None, "blind": None}
    scaled = ("plain", "factor", "by", "scaled", "seeing")
    assert one.factor == pytest.approx(SIZE**-0.5 if kind in scaled else others.get(kind, 1.0))
    x = np.random.default_rng(0).normal(size=(1, TOKENS, HIDDEN)).astype(np.float16)
    (wanted,) = onnxruntime.InferenceSession(network(kind).SerializeToString()).run(
        None, {"hidden": x.astype(np.float32)}
    )
    got = computed(program, x)
    assert wanted.std() > 0.1
    np.testing.assert_allclose(got, wanted, atol=8 * rounding("float16") * abs(wanted).max())


def computed(program: Program, x: np.ndarray) -> np.ndarray:
    """By the program that was made for a GPU, on this processor."""
    import tvm
    from tvm import relax

    from tunefarm.frontend.stored import load_program_module

    module = load_program_module(program.module)
    machine = relax.VirtualMachine(relax.build(module, "llvm"), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy().astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "dtype", "target"),
    [
        ("seen", "float16", "cuda:arch=sm_80"),  # its weights have to be there
        ("tiny", "bfloat16", "cuda:arch=sm_80"),  # a factor that would be nought
        ("ones", "float16", "cuda:arch=sm_80"),  # what is no number becomes something else
        ("weighed", "float16", "cuda:arch=sm_80"),  # and here somebody sees it
        ("few", "float16", "cuda:arch=sm_80"),  # blocks for the keys are wanted
        ("told", "float16", "cuda:arch=sm_80"),  # it would be a stage without an axis
        ("wide", "float16", "cuda:arch=sm_80"),  # registers cannot hold the sums
        ("plain", "float32", "cuda:arch=sm_80"),
        ("plain", "float16", "cuda:arch=sm_75"),  # which copies nothing aside
        ("plain", "float16", "llvm"),
    ],
)
def test_other_attention_stays_as_it_is(tmp_path: Path, kind: str, dtype: str, target: str) -> None:
    assert attentions(imported(kind, tmp_path, dtype, target)) == 0


@pytest.mark.parametrize("kind", ["blind", "seeing"])
def test_a_guard_of_few_weights_is_in_the_kernel_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Of which the compiler might make constants, that a kernel cannot have."""
    monkeypatch.setattr(f"{__name__}.TOKENS", 18)
    program = imported(kind, tmp_path, "float16", "cuda:arch=sm_80")
    assert attentions(program) == 1
    x = np.random.default_rng(0).normal(size=(1, 18, HIDDEN)).astype(np.float16)
    (wanted,) = onnxruntime.InferenceSession(network(kind).SerializeToString()).run(
        None, {"hidden": x.astype(np.float32)}
    )
    off = 8 * rounding("float16") * abs(wanted).max()
    np.testing.assert_allclose(computed(program, x), wanted, atol=off)


@pytest.mark.parametrize(("kind", "count"), [("blind", 1), ("ones", 0)])
def test_what_is_no_number_is_told_of_bfloat16_as_well(
    tmp_path: Path, kind: str, count: int
) -> None:
    """Of which the compiler does not know it; in attention and outside."""
    program = imported(kind, tmp_path, "bfloat16", "cuda:arch=sm_80")
    assert attentions(program) == count


def test_networks_of_the_zoo_have_an_attention_for_each_layer(tmp_path: Path) -> None:
    from tunefarm.frontend.zoo.networks import write_zoo_model

    path = write_zoo_model("decoder", tmp_path / "m.onnx", dtype="bfloat16")
    run_import(ImportRequest(path, tmp_path / "program", parse_target("cuda:arch=sm_90")))
    program = load_program(tmp_path / "program")
    assert attentions(program) == 2
    assert not [task for task in program.tasks if "transpose" in task.name]
    (noted,) = (p for p in program.evidence["passes"] if p["pass"] == "relax.gather_attention")
    assert noted["detail"] == "attentions as one kernel: 2"


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "bias"),
    [("llvm:num-cores=2", False), ("cuda:arch=sm_75", False), ("cuda:arch=sm_90", True)],
)
def test_attention_that_is_one_operator_is_spelled_out(
    tmp_path: Path, target: str, bias: bool
) -> None:
    """As ONNX Runtime's optimiser writes it; it has a schedule on any target, and where it is one
    kernel its parts are read where one product has put them."""
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    of, half = parse_target(target), target.startswith("cuda")
    of = completed(of) if half else of
    model = one_operator(bias)
    path = tmp_path / "m.onnx"
    path.write_bytes((narrowed(model, "float16") if half else model).SerializeToString())
    run_import(ImportRequest(path, tmp_path / "program", of))
    program = load_program(tmp_path / "program")
    names = [task.name for task in program.tasks]
    gathered = target == "cuda:arch=sm_90"
    assert ("attention" in names) == gathered
    if gathered:
        assert sorted(names) == ["attention", "matmul_cast_add"]
    for task in program.tasks:
        assert design_space(replay.load_workload(program.workload(task.id)), of)
    x = np.random.default_rng(0).normal(size=(1, TOKENS, HIDDEN)).astype("f2" if half else "f4")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"hidden": x.astype(np.float32)})
    off = 8 * rounding("float16") if half else 1e-5
    np.testing.assert_allclose(computed(program, x), wanted, atol=off * abs(wanted).max())


def one_operator(bias: bool) -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    constants = {
        "weights": rng.normal(size=(HIDDEN, 3 * HIDDEN)) / np.sqrt(HIDDEN),
        "offsets": rng.normal(size=3 * HIDDEN),
        "bias": rng.normal(size=(1, HEADS, TOKENS, TOKENS)),
    }
    inputs = ["hidden", "weights", "offsets", *(["", "", "bias"] if bias else [])]
    node = onnx.helper.make_node(
        "Attention", inputs, ["result"], domain="com.microsoft", num_heads=HEADS
    )
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, TOKENS, HIDDEN])
        for name in ("hidden", "result")
    ]
    kept = [onnx.numpy_helper.from_array(v.astype("f4"), k) for k, v in constants.items()]
    kept = kept if bias else kept[:2]
    graph = onnx.helper.make_graph([node], "attention", ends[:1], ends[1:], kept)
    opsets = [onnx.helper.make_opsetid(*one) for one in (("", 17), ("com.microsoft", 1))]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
