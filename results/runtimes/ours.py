"""tunefarm's artifact, and the untuned build that it started from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tunefarm.devices.here import RUNTIME_ONLY
from tunefarm.measure.runner import thread_env
from tunefarm.results.runtimes.contract import Array, Run, Runtime, Subject

_TVM = {"tvm": "apache-tvm"}


class Tunefarm(Runtime):
    """The artifact as its users run it: `tunefarm.load`."""

    name: ClassVar[str] = "tunefarm"
    needs: ClassVar[Mapping[str, str]] = _TVM

    def missing(self, subject: Subject) -> str:
        if subject.artifact is None:
            return "no artifact for this model and host: tunefarm submit, or name one (--artifact)"
        return super().missing(subject)

    def prepared_s(self, subject: Subject) -> float | None:
        """What the search took."""
        from tunefarm.results.artifact_file import open_artifact

        assert subject.artifact is not None
        wall_s = open_artifact(subject.artifact).manifest.get("wall_s")
        return float(wall_s) if wall_s is not None else None

    def environment(self, threads: int) -> dict[str, str]:
        return {**RUNTIME_ONLY, **thread_env(threads)}

    def load(self, subject: Subject, setting: str) -> Run:
        from tunefarm.results.loader import load

        assert subject.artifact is not None
        model = load(subject.artifact)
        return lambda feed: list(model(feed).values())


class UntunedTvm(Runtime):
    """TVM's plain build: no schedules but its own defaults."""

    name: ClassVar[str] = "tvm"
    needs: ClassVar[Mapping[str, str]] = _TVM

    def environment(self, threads: int) -> dict[str, str]:
        return {**RUNTIME_ONLY, **thread_env(threads)}

    def prepare(self, subject: Subject, setting: str) -> None:
        from tunefarm.devices.probe import probe
        from tunefarm.frontend.importer import ImportRequest, import_model
        from tunefarm.measure.assemble import AssembleRequest, assemble

        target = probe()[0].target
        program = import_model(ImportRequest(subject.model, subject.directory / "program", target))
        library = subject.directory / "model.so"
        assemble(AssembleRequest(program.baseline, (), (), target, library))

    def load(self, subject: Subject, setting: str) -> Run:
        from tunefarm.measure.model import CompiledModel

        model = CompiledModel(subject.directory / "model.so")

        def run(feed: Mapping[str, Array]) -> list[Array]:
            return model([feed[spec.name] for spec in subject.inputs])

        return run
