"""Models of few operators, and that what they are spelled as computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tunefarm.frontend.onnx.passes import Graph
from tunefarm.frontend.spelled.expansion import expand, inline_functions

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
KNOWN = frozenset(schema.name for schema in onnx.defs.get_all_schemas()) - {"Celu", "Swish"}
"""An importer's, which lacks two that the standard defines by others."""
MOST = 10_000


def model_of(nodes, inputs, outputs, constants=None, opset=17, functions=()):
    """Inputs as arrays; outputs as names, of any type and shape."""
    graph = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid("local", 1) for _ in functions)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)
    return onnx.shape_inference.infer_shapes(model)


def run(model, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def after(graph_pass, model):
    """A copy of the model as a pass over its graph leaves it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = Graph(copy)
    graph_pass(graph)
    made = graph.store()
    onnx.checker.check_model(made)
    return made


def check(model, inputs, tolerance=2e-6):
    """What it is spelled as, once that was seen to compute the same."""
    spelled = expand(inline_functions(model, MOST), KNOWN, MOST)
    wanted, found = run(model, inputs), run(spelled, inputs)
    for one, other in zip(wanted, found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)
    return spelled


def operators(model):
    return {node.op_type for node in model.graph.node}


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


IMAGE = random(1, 2, 9, 7)
