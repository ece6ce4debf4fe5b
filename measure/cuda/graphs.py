"""Whole models on a GPU: what is launched there is one graph, captured when it is called first.

Begun one by one, a network's kernels take longer to begin than to run: of a ResNet-50 in half
precision most take two to five microseconds each.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax import backend, transform

from tunefarm.measure.model import ONE_BY_ONE

_GRAPHS = "relax.backend.use_cuda_graph"


@tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
def graphed(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """TVM's default pipeline of whole models, with `main` as graphs, and again as `ONE_BY_ONE`.

    What a graph reads and writes lies where it lay: inputs are read, and results are written, by
    kernels before and after it.
    """
    planned = tvm.transform.Sequential(
        [
            backend.DispatchSampling(),
            backend.DispatchSortScan(),
            transform.LegalizeOps(),
            transform.RewriteDataflowReshape(),
            transform.ToNonDataflow(),
            transform.RemovePurityChecking(),
            transform.CallTIRRewrite(),
            transform.StaticPlanBlockMemory(),
        ]
    )(module)
    single = relax.utils.copy_with_new_vars(planned["main"])
    with tvm.transform.PassContext(config={_GRAPHS: True}):
        planned = transform.RewriteCUDAGraph()(planned)
    planned[ONE_BY_ONE] = single.with_attr("global_symbol", ONE_BY_ONE)
    return tvm.transform.Sequential(
        [
            transform.LowerAllocTensor(),
            transform.KillAfterLastUse(),
            transform.LowerRuntimeBuiltin(),
            transform.ComputePrimValue(),
            transform.VMShapeLower(),
            transform.AttachGlobalSymbol(),
        ]
    )(planned)
