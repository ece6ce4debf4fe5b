"""What PyTorch makes of the kernels of `gpu.py` and networks of `gpu_network.py` (ResNet-50, the
zoo's encoder), on the GPU of this machine; needs PyTorch, for ResNet-50 torchvision, and
`gpu_shapes.py` alone.

    python gpu_rivals.py RESULTS.json [--seconds 0.2] [--for 300] [--kernels A,B]

Eager (cuBLAS, cuDNN), then Inductor with its widest search (which uses Triton), one of each sort in
turns, in float16 first, for as long as leaves time for eager once more: how far the two differ is
what the GPU's clocks did meanwhile. What there is is written after each kernel.

Medians over samples of several calls between two events of the device, in a graph, with everything
at hand, as `gpu.py`'s bundle has it; float32 without tf32, and where rows are called so with it.
A network's weights are random, and its inputs come from the host and its outputs go there, as
`gpu_network.py` has it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_shapes import ATTENTION, CONVOLUTIONS, LONG_ATTENTION, PRODUCTS, said
from torch.nn import functional

SAMPLE_MS = 2.0
EAGER, LATER, INDUCTOR = "PyTorch", "PyTorch later", "Inductor"
TF32 = "tf32"
TYPES = {"float16": torch.float16, "float32": torch.float32, TF32: torch.float32}

Named = dict[str, tuple[Callable[..., Any], list[torch.Tensor]]]


def kernels(name: str) -> Named:
    """By name: what computes it, and its arguments; of convolutions in channels-last memory."""
    dtype = TYPES[name]

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(shape, dtype=dtype, device="cuda") - 0.5

    found: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {}
    for size in PRODUCTS:
        found[f"product {size} {name}"] = (torch.matmul, [random(size, size), random(size, size)])
    for rows, channels, filters, taps in CONVOLUTIONS:
        label = said((rows, channels, filters, taps))
        image = random(1, channels, rows, rows).to(memory_format=torch.channels_last)
        weights = random(filters, channels, taps, taps).to(memory_format=torch.channels_last)

        def convolve(x: torch.Tensor, w: torch.Tensor, pad: int = taps // 2) -> torch.Tensor:
            return functional.conv2d(x, w, padding=pad)

        found[f"convolution {label} {name}"] = (convolve, [image, weights])
    if name == TF32:
        return found
    x, scale, shift = random(4096, 1024), random(1024), random(1024)
    found[f"softmax {name}"] = (lambda x: functional.softmax(x, dim=1), [x])
    found[f"layer norm {name}"] = (
        lambda x, g, b: functional.layer_norm(x, [1024], g, b, 1e-5),
        [x, scale, shift],
    )
    heads, rows, depth = ATTENTION
    q, k, v = (random(1, heads, rows, depth) for _ in range(3))
    found[f"attention {name}"] = (functional.scaled_dot_product_attention, [q, k, v])
    if name == "float16":
        n, many, deep = LONG_ATTENTION
        long = [random(1, n, many, deep) for _ in range(3)]
        named = f"attention {said(LONG_ATTENTION)} {name}"
        found[named] = (functional.scaled_dot_product_attention, long)
    q, k, p = random(heads, rows, depth), random(heads, rows, depth), random(heads, rows, rows)
    found[f"attention softmax {name}"] = (lambda x: functional.softmax(x, dim=-1), [p])
    found[f"attention q k {name}"] = (lambda q, k: torch.bmm(q, k.transpose(1, 2)), [q, k])
    found[f"attention p v {name}"] = (torch.bmm, [p, k])
    return found


def networks(name: str) -> Named:
    """From the host to the host."""
    if name not in ("float16", TF32):
        return {}
    found = {"encoder": (encoder(), torch.rand(1, 128, 768))}
    try:
        from torchvision.models import resnet50

        model = resnet50().to(memory_format=torch.channels_last)
        image = torch.rand(1, 3, 224, 224).to(memory_format=torch.channels_last)
        found["resnet50"] = (model, image)
    except (ImportError, RuntimeError) as error:  # the latter where it is another PyTorch's
        print(f"no ResNet-50: {error}", flush=True)
    dtype = TYPES[name]
    return {
        f"network {network} {name}": (_inferring(model.eval().to("cuda", dtype)), [x.to(dtype)])
        for network, (model, x) in found.items()
    }


def encoder() -> torch.nn.Module:
    """The zoo's: four layers like BERT-base's, of 128 tokens."""
    layer = torch.nn.TransformerEncoderLayer(
        768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True
    )
    return torch.nn.TransformerEncoder(layer, 4)


def _inferring(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    @torch.inference_mode()
    def infer(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(x.to("cuda"))
        return result.to("cpu")

    return infer


def seconds(call: Callable[[], Any], budget_s: float, on_host: bool) -> float:
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

    number = max(1, round(SAMPLE_MS / max(1e-3, sample(call))))

    def several() -> None:
        for _ in range(number):
            call()

    run: Callable[[], Any] = several if on_host else captured(several)
    run()
    count = max(5, min(200, round(budget_s * 1e3 / SAMPLE_MS)))
    return statistics.median(sample(run) for _ in range(count)) / number * 1e-3


def captured(run: Callable[[], Any]) -> Callable[[], Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--for", dest="limit_s", type=float, default=300.0)
    parser.add_argument("--kernels", default="")
    a = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    rows: dict[str, dict[str, float]] = {}
    began = time.monotonic()
    reserve_s = 0.0

    def kept() -> None:
        about = {"device": torch.cuda.get_device_name(), "versions": versions()}
        a.results.write_text(json.dumps({**about, "kernels": rows}, indent=1) + "\n")

    for rival in (EAGER, INDUCTOR, LATER):
        if rival == INDUCTOR:
            reserve_s = 1.2 * (time.monotonic() - began)
        for kind in TYPES:
            torch.backends.cuda.matmul.allow_tf32 = kind == TF32
            torch.backends.cudnn.allow_tf32 = kind == TF32
            named = {**kernels(kind), **networks(kind)}
            for name in in_turns(list(named)) if rival == INDUCTOR else list(named):
                function, arguments = named[name]
                if a.kernels and name not in a.kernels.split(","):
                    continue
                left_s = a.limit_s - (time.monotonic() - began)
                if rival == INDUCTOR and left_s < reserve_s:
                    print(f"{name}: no time for {rival}", flush=True)
                    continue
                found = timed(rival, function, arguments, a.seconds, name.startswith("network"))
                if isinstance(found, str):  # a rival that fails is a row without it
                    print(f"{name}: {rival}: {found}", flush=True)
                    continue
                rows.setdefault(name, {})[rival] = found
                print(f"{name}: {rival} {found * 1e6:.1f} us", flush=True)
                kept()


def in_turns(names: list[str]) -> list[str]:
    """One of each sort, a sort being a first word, then another one of each."""
    sorts: dict[str, list[str]] = {}
    for name in names:
        sorts.setdefault(name.partition(" ")[0], []).append(name)
    longest = max(map(len, sorts.values()), default=0)
    return [of[n] for n in range(longest) for of in sorts.values() if n < len(of)]


def versions() -> str:
    try:
        import triton

        compiler = f", Triton {triton.__version__}"
    except ImportError:
        compiler = ""
    return f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}{compiler}"


def timed(
    rival: str,
    function: Callable[..., Any],
    arguments: list[torch.Tensor],
    budget_s: float,
    on_host: bool,
) -> float | str:
    """Seconds, or why there are none."""
    try:
        if rival == INDUCTOR:
            torch._dynamo.reset()
            function = torch.compile(function, mode="max-autotune-no-cudagraphs")
        return seconds(lambda: function(*arguments), budget_s, on_host)
    except Exception as error:  # of many types
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"


if __name__ == "__main__":
    main()
