"""Real networks with seeded random weights: those that the onnx package carries, transformers,
convolutional networks for small devices and of groups, and a recurrent one.

The graphs of the first are real; their weights are stripped to constants. Here they get random
ones: normal, scaled by the fan-in so that activations stay in range, and positive variances.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from tunefarm.errors import UsageError
from tunefarm.frontend.dtypes import HALF
from tunefarm.frontend.onnx.half import narrowed
from tunefarm.frontend.onnx.passes import Graph
from tunefarm.frontend.zoo import crnn
from tunefarm.frontend.zoo.grouped import GROUPED, grouped
from tunefarm.frontend.zoo.mobile import NETWORKS, mobile
from tunefarm.frontend.zoo.quantiser import KINDS, quantised
from tunefarm.frontend.zoo.transformers import SHAPES, transformer
from tunefarm.home import write_atomically

_DIRECTORY = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def zoos() -> dict[str, tuple[str, ...]]:
    """The names of the networks, by collection."""
    light = sorted(p.stem.removeprefix("light_") for p in _DIRECTORY.glob("light_*.onnx"))
    return {
        "onnx-light": tuple(light),
        "transformers": tuple(SHAPES),
        "mobile": tuple(NETWORKS),
        "grouped": tuple(GROUPED),
        "recurrent": (crnn.NAME,),
    }


def zoo_names() -> tuple[str, ...]:
    return tuple(name for names in zoos().values() for name in names)


def zoo_model(name: str, seed: int = 0) -> onnx.ModelProto:
    """The network `name` (``squeezenet``, ``resnet50``, ...) with weights drawn from `seed`.

    Raises:
        UsageError: no such network.
    """
    if name in SHAPES:
        return transformer(name, seed)
    if name in NETWORKS:
        return mobile(name, seed)
    if name in GROUPED:
        return grouped(name, seed)
    if name == crnn.NAME:
        return crnn.crnn(seed)
    path = _DIRECTORY / f"light_{name}.onnx"
    if not path.exists():
        raise UsageError(f"no network {name!r}; there are {', '.join(zoo_names())}")
    graph = Graph(onnx.load(path))
    generator = np.random.default_rng(seed)
    variances = {n.input[4] for n in graph.nodes if n.op_type == "BatchNormalization"}
    shapes: dict[str, tuple[int, ...]] = {}
    nodes = []
    for node in graph.nodes:
        if node.op_type == "ConstantOfShape" and node.input[0] in graph.constants:
            shapes[node.output[0]] = tuple(int(d) for d in graph.constants[node.input[0]])
        else:
            nodes.append(node)
    shapes |= {n: a.shape for n, a in graph.constants.items() if a.dtype == np.float32}
    for tensor, shape in shapes.items():
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 0
        if tensor in variances:
            values = generator.uniform(0.5, 1.5, shape)
        else:
            values = generator.normal(0, np.sqrt(2 / fan_in) if fan_in else 0.1, shape)
        graph.constants[tensor] = values.astype(np.float32)
    graph.nodes = nodes
    model = graph.store()
    # Names that TVM, ONNX Runtime and the ONNX checker all take: an old IR wants every
    # initializer among the inputs.
    model.ir_version = max(model.ir_version, 8)
    return model


def write_zoo_model(name: str, path: Path, seed: int = 0, dtype: str = "float32") -> Path:
    """The network in a file, its numbers of type `dtype`: of a
    kind of `quantiser`'s, quantised."""
    model = zoo_model(name, seed)
    if dtype in KINDS:
        model = quantised(model, dtype, seed)
    if dtype in HALF:
        model = narrowed(model, dtype)
    write_atomically(path, model.SerializeToString(deterministic=True))
    return path
