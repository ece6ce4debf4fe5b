"""What PyTorch makes of the kernels of `gpu.py` and networks of `gpu_network.py` (ResNet-50, the
zoo's encoder), on the GPU of this machine; needs PyTorch, for ResNet-50 torchvision, and
`gpu_shapes.py` and `gpu_rivals_record.py` alone.

    python gpu_rivals.py RESULTS.json [--samples 20] [--for 300] [--kernels A,B]

Eager (cuBLAS, cuDNN), then Inductor with its widest search (which uses Triton), one of each sort in
turns and networks last, in float16 first, for as long as leaves time for eager once more: how far
the two differ is what the GPU's clocks did meanwhile. What there is is written after each kernel.
Each rival is given its best: of attention cuDNN's and FlashAttention's too, of what memory bounds
and of networks Inductor's default as well, which its widest search may miss, or not come to in the
time that there is.

Medians over samples of several calls between two events of the device, in a graph, with everything
at hand, after a pause and for as long as `gpu.py`'s bundle has it; float32 without tf32, and where
rows are called so with it. A network's weights are random, its inputs come from the host and its
outputs go there, as `gpu_network.py` has it; Inductor's is one graph of CUDA's between the two.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_rivals_record import Found, timed
from gpu_shapes import ATTENTION, CONVOLUTIONS, LONG_ATTENTION, PRODUCTS, said
from torch.nn import functional

SAMPLE_MS = 2.0
PAUSE_S = 0.2
"""Before each is timed, which then is a burst: no rival is slowed by the one before."""
MOST_CALLS = 2000
EAGER, LATER, INDUCTOR = "PyTorch", "PyTorch later", "Inductor"
WIDEST, WHOLE = "max-autotune-no-cudagraphs", "max-autotune"
PLAIN, WHOLE_PLAIN = "default", "reduce-overhead"
GRAPH = "in a graph"
WHOLE_S = 300.0
"""With less, a network's widest search is not begun: ResNet-50's was not over after 140 s, on an
H200 beside 16 cores."""
LATER_S = 1.0
"""That each takes once more, without being compiled; left to it by what takes longer."""
EAGERLY = "eager"
TF32 = "tf32"
TYPES = {"float16": torch.float16, "float32": torch.float32, TF32: torch.float32}

Named = dict[str, Callable[[], tuple[Callable[..., Any], list[torch.Tensor]]]]
"""By name, what makes what computes it and its arguments: a module, which gets them from the host,
or a function."""


def kernels(name: str) -> Named:
    """Of convolutions in channels-last memory."""
    dtype = TYPES[name]

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(shape, dtype=dtype, device="cuda") - 0.5

    def of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
        return lambda: (function, [random(*shape) for shape in shapes])

    def convolution(rows: int, channels: int, filters: int, taps: int) -> Any:
        image = random(1, channels, rows, rows).to(memory_format=torch.channels_last)
        weights = random(filters, channels, taps, taps).to(memory_format=torch.channels_last)
        return lambda x, w: functional.conv2d(x, w, padding=taps // 2), [image, weights]

    found: Named = {}
    for size in PRODUCTS:
        found[f"product {size} {name}"] = of(torch.matmul, (size, size), (size, size))
    for shape in CONVOLUTIONS:
        found[f"convolution {said(shape)} {name}"] = lambda s=shape: convolution(*s)
    if name == TF32:
        return found
    found[f"softmax {name}"] = of(lambda x: functional.softmax(x, dim=1), (4096, 1024))
    found[f"layer norm {name}"] = of(
        lambda x, g, b: functional.layer_norm(x, [1024], g, b, 1e-5),
        *((4096, 1024), (1024,), (1024,)),
    )
    attend = functional.scaled_dot_product_attention
    heads, rows, depth = ATTENTION
    found[f"attention {name}"] = of(attend, *[(1, heads, rows, depth)] * 3)
    if name == "float16":
        n, many, deep = LONG_ATTENTION
        found[f"attention {said(LONG_ATTENTION)} {name}"] = of(attend, *[(1, n, many, deep)] * 3)
    scores, each = (heads, rows, rows), (heads, rows, depth)
    found[f"attention softmax {name}"] = of(lambda x: functional.softmax(x, dim=-1), scores)
    turned = of(lambda q, k: torch.bmm(q, k.transpose(1, 2)), each, each)
    found[f"attention q k {name}"] = turned
    found[f"attention p v {name}"] = of(torch.bmm, scores, each)
    return found


def networks(name: str) -> Named:
    """From the host to the host."""
    if name not in ("float16", TF32):
        return {}
    dtype = TYPES[name]

    def inferring(model: torch.nn.Module, x: torch.Tensor) -> Any:
        return model.eval().to("cuda", dtype), [x.to(dtype)]

    def resnet() -> Any:
        from torchvision.models import resnet50

        image = torch.rand(1, 3, 224, 224).to(memory_format=torch.channels_last)
        return inferring(resnet50().to(memory_format=torch.channels_last), image)

    return {
        f"network encoder {name}": lambda: inferring(encoder(), torch.rand(1, 128, 768)),
        f"network resnet50 {name}": resnet,
    }


def encoder() -> torch.nn.Module:
    """The zoo's: four layers like BERT-base's, of 128 tokens."""
    layer = torch.nn.TransformerEncoderLayer(
        768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True
    )
    return torch.nn.TransformerEncoder(layer, 4)


def _inferring(model: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The copies are no part of what is compiled: a graph of CUDA's has none from the host."""

    @torch.inference_mode()
    def infer(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(x.to("cuda"))
        return result.to("cpu")

    return infer


def _in_a_graph(model: Callable[..., Any], x: torch.Tensor) -> Callable[..., torch.Tensor]:
    """What PyTorch does by itself, without what it takes to begin each kernel."""
    given = x.to("cuda")
    with torch.inference_mode():
        for _ in range(3):  # by then cuDNN has chosen
            model(given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result: torch.Tensor = model(given)

    def replayed(there: torch.Tensor) -> torch.Tensor:
        given.copy_(there)
        graph.replay()
        return result

    return replayed


def seconds(call: Callable[[], Any], samples: int, on_host: bool) -> float:
    """Of one call; a graph of several is replayed, as `gpu.py`'s bundle does it, so that the host's
    part of a call does not count, but where it is to (`on_host`)."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample(run: Callable[[], Any]) -> float:
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def calls(call_ms: float) -> int:
        return max(1, min(MOST_CALLS, round(SAMPLE_MS / max(1e-3, call_ms))))

    number = calls(sample(call))
    if not on_host:  # of short calls that time is the host's: a graph's says how many fill a sample
        run = captured(call, number)
        run()
        number = calls(sample(run) / number)
        run = captured(call, number)
    else:
        run = repeated(call, number)
    run()
    torch.cuda.synchronize()
    time.sleep(PAUSE_S)
    return statistics.median(sample(run) for _ in range(samples)) / number * 1e-3


def repeated(call: Callable[[], Any], number: int) -> Callable[[], None]:
    def several() -> None:
        for _ in range(number):
            call()

    return several


def captured(call: Callable[[], Any], number: int) -> Callable[[], Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        repeated(call, number)()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--for", dest="limit_s", type=float, default=300.0)
    parser.add_argument("--kernels", default="")
    a = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    # Whole layers in one operator, which neither FlashAttention nor Inductor gets to see.
    torch.backends.mha.set_fastpath_enabled(False)
    about = {"device": torch.cuda.get_device_name(), "versions": versions()}
    found = Found(about, a.results)
    began = time.monotonic()
    for rival in (EAGER, INDUCTOR, LATER):
        for kind in TYPES:
            torch.backends.cuda.matmul.allow_tf32 = kind == TF32
            torch.backends.cudnn.allow_tf32 = kind == TF32
            named = {**kernels(kind), **networks(kind)}
            names = [n for n in named if not a.kernels or n in a.kernels.split(",")]
            for name in in_turns(names) if rival == INDUCTOR else names:
                due = [one for one in ways(rival, name) if not found.has(rival, name, one.name)]
                left_s = a.limit_s - (time.monotonic() - began)
                if rival == INDUCTOR:
                    left_s -= LATER_S * sum(not found.has(LATER, n, EAGERLY) for n in names)
                if due:
                    found.add(rival, name, timed(due, named[name], a.samples, left_s))


def in_turns(names: list[str]) -> list[str]:
    """One of each sort, a sort being a first word, then another one of each; networks after all:
    each of them takes as long as many kernels."""
    sorts: dict[str, list[str]] = {}
    for name in names:
        sorts.setdefault(name.partition(" ")[0], []).append(name)
    whole = sorts.pop("network", [])
    longest = max(map(len, sorts.values()), default=0)
    return [of[n] for n in range(longest) for of in sorts.values() if n < len(of)] + whole


def versions() -> str:
    try:
        import triton

        compiler = f", Triton {triton.__version__}"
    except ImportError:
        compiler = ""
    return f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}{compiler}"


@dataclass(frozen=True)
class Way:
    """Of computing something: compiled in that `mode`, or as it is, `within` some context; whatever
    has less time than it `takes_s` is not begun."""

    name: str = EAGERLY
    mode: str = ""
    takes_s: float = 0.1
    within: Callable[[], Any] = contextlib.nullcontext

    def seconds(self, make: Callable[[], Any], samples: int) -> float:
        function, arguments = make()
        network = isinstance(function, torch.nn.Module)
        if self.mode == GRAPH:
            function = _in_a_graph(function, arguments[0])
        elif self.mode:
            torch._dynamo.reset()
            function = torch.compile(function, mode=self.mode)
        if network:
            function = _inferring(function)
        return seconds(lambda: function(*arguments), samples, network)


def ways(rival: str, name: str) -> list[Way]:
    """Those of which the fastest counts."""
    sort = name.partition(" ")[0]
    if rival == INDUCTOR:
        if sort == "network":
            return [Way(WHOLE_PLAIN, WHOLE_PLAIN), Way(WHOLE, WHOLE, WHOLE_S)]
        bound_by_memory = sort in ("softmax", "layer") or name.startswith("attention softmax")
        return [Way(mode, mode) for mode in (WIDEST, *([PLAIN] if bound_by_memory else []))]
    if sort == "attention" and len(name.split()) <= 3 and "softmax" not in name:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        each = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
        return [Way(), *(Way(o.name.lower(), within=lambda o=o: sdpa_kernel(o)) for o in each)]
    return [Way(), *([Way(GRAPH, GRAPH)] if sort == "network" else [])]


if __name__ == "__main__":
    main()
