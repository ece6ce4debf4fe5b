"""Which products become integers, and constants that are turned without the compiler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.quantised_models import Quantised, network
from tunefarm.devices.target import parse_target

pytestmark = pytest.mark.tvm

TARGET = parse_target("llvm:mcpu=cascadelake:num-cores=2")


@pytest.mark.parametrize(("terms", "columns", "integers"), [(64, 8, 1), (64, 6, 0), (70_000, 4, 0)])
def test_a_product_whose_sums_might_not_fit_32_bits_stays_as_it_is(
    tmp_path: Path, terms: int, columns: int, integers: int
) -> None:
    """Or whose columns no vector divides."""
    from tests.bench import imported

    one = Quantised()
    x = one.rounded("x", 1 / 90)
    numbers = one.constant(np.full((terms, columns), 127, np.int8))
    scale, zero = one.constant(np.float32(0.01)), one.constant(np.int8(0))
    one.add("MatMul", x, one.add("DequantizeLinear", numbers, scale, zero))
    one.nodes[-1].output[0] = "y"
    path = tmp_path / "m.onnx"
    model = one.model([("x", [2, terms])], [("y", [2, columns])])
    path.write_bytes(model.SerializeToString())
    program = imported(tmp_path, path, TARGET)
    assert sum("fours" in task.name for task in program.tasks) == integers


@pytest.mark.parametrize("shape", [(64,), (2, 64), (1, 2, 64), (2, 8, 64), (2, 3, 4, 64)])
def test_a_product_is_of_integers_however_many_axes_its_rows_have(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    from tests.bench import imported

    one = Quantised()
    x = one.rounded("x", 1 / 90)
    numbers = one.constant(np.full((64, 8), 127, np.int8))
    scale, zero = one.constant(np.float32(0.01)), one.constant(np.int8(0))
    one.add("MatMul", x, one.add("DequantizeLinear", numbers, scale, zero))
    one.nodes[-1].output[0] = one.nodes[-1].output[0] + "p"
    one.add("Relu", one.nodes[-1].output[0])
    one.nodes[-1].output[0] = "y"
    path = tmp_path / "m.onnx"
    model = one.model([("x", [*shape])], [("y", [*shape[:-1], 8])])
    path.write_bytes(model.SerializeToString())
    program = imported(tmp_path, path, TARGET)
    integers = sum("fours" in task.name for task in program.tasks)
    assert integers == (len(shape) > 1), [task.name for task in program.tasks]


def test_the_compiler_turns_no_constants(tmp_path: Path) -> None:
    import onnx
    import tvm
    from tvm import relax

    from tunefarm.frontend.pass_log import PassLog
    from tunefarm.frontend.relax import fold, layout
    from tunefarm.frontend.relax import passes as relax_passes
    from tunefarm.frontend.relax.calls import is_call

    model = onnx.load(network(tmp_path / "m.onnx"))
    log = PassLog()
    module = relax_passes.from_onnx(model, log)
    module = relax_passes.simplify(module, TARGET, log)
    converting = relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]})
    with tvm.target.Target(TARGET.tvm):
        turned = converting(layout.Layable()(module))
        folded = fold.Folded()(turned)

    def constants(module: tvm.IRModule) -> list[np.ndarray]:
        found: list[np.ndarray] = []

        def visit(node) -> None:
            if is_call(node, "relax.permute_dims") and isinstance(
                node.args[0], tvm.ir.GenericConst
            ):
                found.append(node.args[0].value.numpy())

        relax.analysis.post_order_visit(module["main"], visit)
        return found

    assert len(constants(turned)) > 10
    assert constants(folded) == []
