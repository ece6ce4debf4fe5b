"""How far a quantised model's outputs move when its inputs hardly do, and how far ONNX Runtime's
optimisations move them: `sensitivity.py MODEL ... [--seeds N]`. See decision 30."""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx
import onnxruntime

from tunefarm.frontend.onnx.file import input_specs
from tunefarm.measure.expected import moves, parity_inputs
from tunefarm.measure.gate import distance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=4)
    arguments = parser.parse_args()
    print("| model | moved by | optimised and not |\n|---|---|---|")
    for path in arguments.models:
        moved, apart = of_model(path, arguments.seeds)
        print(f"| {path.stem} | {_range(moved)} | {_range(apart)} |", flush=True)


def of_model(path: Path, seeds: int) -> tuple[list[float], list[float]]:
    """For each seed how far the model moves, and how far it is from itself unoptimised."""
    specs = input_specs(onnx.load(path))
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    optimised, unoptimised = (
        onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        for options in (onnxruntime.SessionOptions(), plain)
    )

    def answer(arrays, session=optimised):
        return list(session.run(None, {s.name: a for s, a in zip(specs, arrays, strict=True)}))

    moved, apart = [], []
    for seed in range(seeds):
        inputs = parity_inputs(specs, seed)
        outputs = answer(inputs)
        moved.append(moves(answer, inputs, outputs))
        apart.append(distance(answer(inputs, unoptimised), outputs))
    return moved, apart


def _range(values: list[float]) -> str:
    return f"{min(values):.2g} to {max(values):.2g}"


if __name__ == "__main__":
    main()
