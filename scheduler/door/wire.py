"""What travels through the door besides what `results.documents` has."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

PREFIX = "/v1"
PORT = 8470
DIGEST_HEADER = "X-Tunefarm-Digest"
FILE_HEADER = "X-Tunefarm-File"

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")]
Text = Annotated[str, StringConstraints(max_length=4096)]
Shape = tuple[Text, Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=16)]]


class Submission(BaseModel):
    """A job for the farm: the options of `tunefarm submit`, of a model that is there already.

    Attributes:
        model: SHA-256 of the model's file.
        file: its name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Digest
    file: FileName
    targets: Text = "llvm"
    trials: Annotated[int, Field(ge=1)] | None = None
    budget_s: Annotated[float, Field(gt=0)] | None = None
    name: Text | None = None
    shapes: Annotated[list[Shape], Field(max_length=64)] = []
    layout: Literal["auto", "NCHW", "NHWC"] = "auto"
    strategy: Text = "portfolio"
    retune: bool = False
    transfer: bool = True
    seed: Annotated[int, Field(ge=0)] = 0
    no_device: Literal["fail", "skip", "build"] = "fail"
    priority: Literal["low", "normal", "high"] = "normal"

    def arguments(self) -> list[str]:
        """Of the command. Values are joined to their options, so that none can pass for one."""
        values = {
            "targets": self.targets,
            "trials": self.trials,
            "budget": self.budget_s,
            "name": self.name,
            "layout": self.layout,
            "strategy": self.strategy,
            "seed": self.seed,
            "no-device": self.no_device,
            "priority": self.priority,
        }
        shapes = [f"--shape={name}={','.join(map(str, dims))}" for name, dims in self.shapes]
        flags = ["--retune"] * self.retune + ["--no-transfer"] * (not self.transfer)
        given = [f"--{key}={value}" for key, value in values.items() if value is not None]
        return [*given, *shapes, *flags]


def file_name(text: str) -> str:
    """What is left of a file's name when it may be anything's name."""
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[-128:]
    return kept.lstrip(".-") or "model.onnx"
