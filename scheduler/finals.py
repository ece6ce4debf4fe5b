"""The whole model: compiled with what won, compared, checked, packaged."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from tunefarm import __version__
from tunefarm.devices import cpu
from tunefarm.errors import JobFailed
from tunefarm.home import Home
from tunefarm.measure.assemble import AssembleRequest
from tunefarm.measure.expected import ExpectedRequest
from tunefarm.measure.facts import Checked
from tunefarm.measure.gate import Parity
from tunefarm.measure.judge import fastest, judge, may_be_spared
from tunefarm.measure.requests import CheckRequest, ModelRequest, PlaceRequest
from tunefarm.measure.stats import Comparison, Verdict
from tunefarm.results.artifact import Packaged, package
from tunefarm.results.facts import PACKAGED
from tunefarm.scheduler.plausible import check_checked
from tunefarm.scheduler.previous import Previous
from tunefarm.scheduler.races import Races, kernel_of


@dataclass(frozen=True)
class Finals:
    """What the model is built from is decided by `races`.

    Args:
        directory: of the target within its job.
    """

    home: Home
    races: Races
    directory: Path

    @property
    def previous(self) -> Previous:
        """What an earlier job has shipped."""
        return Previous(self.races, self.directory / "model")

    def _libraries(self) -> tuple[Path, Path]:
        """Of the whole model: untuned, tuned."""
        return self.directory / "model" / "base.so", self.directory / "model" / "tuned.so"

    def _variant_libraries(self) -> list[Path]:
        return [
            self.directory / "model" / f"variant{number}.so"
            for number, _ in enumerate(self.races.variants())
        ]

    def variant_requests(self) -> list[AssembleRequest]:
        """The model with each of `variants`."""
        return [
            self._assemble_request(
                {t: self.races.candidates[c].trace for t, c in chosen.items()}, library
            )
            for chosen, library in zip(
                self.races.variants(), self._variant_libraries(), strict=True
            )
        ]

    def place_request(self, process: int) -> PlaceRequest | None:
        """None where there is nothing to be told apart, or it could not be compiled."""
        libraries = tuple(self._variant_libraries())
        if not libraries or not all(library.exists() for library in libraries):
            return None
        return PlaceRequest(libraries, self.races.program.inputs, self.races.settled(), process)

    def drop_variants(self) -> None:
        """They are as large as the model, and have had their say."""
        for file in (self.directory / "model").glob("variant*"):
            file.unlink(missing_ok=True)

    def assemble_requests(self) -> tuple[AssembleRequest, AssembleRequest]:
        """The tuned model, and the plain build that it is compared with."""
        base, tuned = self._libraries()
        plain = AssembleRequest(
            self.races.program.baseline, (), (), self.races.target.resolved, base
        )
        return self._assemble_request(self.races.tuned_traces(), tuned), plain

    def _assemble_request(self, traces: dict[str, str], library: Path) -> AssembleRequest:
        """The model with these traces of its kernels; the others stay untuned."""
        functions = [
            (f, t.id) for t in self.races.program.tasks for f in t.functions if t.id in traces
        ]
        return AssembleRequest(
            self.races.program.module,
            tuple((f, self.races.program.workload(task)) for f, task in functions),
            tuple((f, traces[task]) for f, task in functions),
            self.races.target.resolved,
            library,
        )

    def model_request(self, process: int) -> ModelRequest:
        base, tuned = self._libraries()
        samples, protocol = self.races.samples("model"), self.races.settled()
        spared = may_be_spared(
            samples.get("base", {}), samples.get("tuned", {}), protocol.slow_model_s, protocol
        )
        return ModelRequest(
            None if spared else base,
            tuned,
            self.races.program.inputs,
            protocol,
            process,
            self.previous.library(),
        )

    def find_previous(self) -> str:
        """See `Previous.find`; once the model is assembled."""
        return self.previous.find(self._libraries()[1])

    def expected_request(self) -> ExpectedRequest:
        program = self.races.program
        return ExpectedRequest(
            program.model,
            program.inputs,
            self.races.target.device.cores,
            self.races.protocol.seeds,
            self._expected(),
            program.precision,
        )

    def _expected(self) -> Path:
        return self.directory / "model" / "expected.npz"

    def check_request(self) -> CheckRequest:
        """Of what may ship: the tuned model, unless it is slower than the untuned build; and that
        one, in case the tuned model computes something else. Of a very slow model it is not asked
        where its time goes."""
        base, tuned = self._libraries()
        seconds = fastest(self.races.samples("model").get("tuned", {}))
        compared = self._compared()
        ships_tuned = compared is not None and compared.verdict is not Verdict.SLOWER
        slow = self.races.protocol.slow_model(seconds)
        return CheckRequest(
            (tuned, base) if ships_tuned else (base,),
            () if slow else (tuned,),
            self._expected(),
            self.races.program.inputs,
            self.races.settled(),
        )

    def _compared(self) -> Comparison | None:
        """The tuned model against the untuned build."""
        samples, protocol = self.races.samples("model"), self.races.protocol
        base, tuned = samples.get("base", {}), samples.get("tuned", {})
        return judge(base, tuned, protocol.model_processes, protocol)

    def note_checked(self, checked: Checked) -> None:
        """For `package_result`; and where the model's time goes, in which kernel, and outside of
        them. Of the untuned build, whose functions are not the program's, nothing is noted.

        Raises:
            Implausible: it cannot be true.
        """
        check_checked(checked)
        job, name = self.races.job.id, self.races.target.name
        self.races.journal.add_event(
            job,
            "checked",
            target=name,
            tuned=checked.library == self._libraries()[1],
            parity=dataclasses.asdict(checked.parity),
            refused=dataclasses.asdict(checked.refused) if checked.refused else None,
        )
        if checked.in_place is None:
            return
        owner = {f: task.id for task in self.races.program.tasks for f in task.functions}
        kernels: dict[str, float] = {}
        for function, seconds in checked.in_place.functions.items():
            task = owner.get(kernel_of(function))
            if task is not None:
                kernels[task] = kernels.get(task, 0.0) + seconds
        self.races.journal.add_event(
            job,
            "in_place",
            target=name,
            model_s=checked.in_place.model_s,
            kernels=kernels,
            outside=checked.in_place.outside,
        )

    def _checked(self) -> tuple[bool, Parity, Parity | None]:
        """Whether the tuned model was taken, its parity or the untuned build's, and that of a tuned
        model that was not taken for it."""
        found = [
            event["detail"]
            for event in self.races.journal.events(self.races.job.id)
            if event["kind"] == "checked" and event["detail"]["target"] == self.races.target.name
        ][-1]
        refused = found.get("refused")  # an older tunefarm has noted none
        return found["tuned"], Parity(**found["parity"]), Parity(**refused) if refused else None

    def package_result(self, elapsed_s: float) -> str:
        """Verdict on the whole model, and the artifact; why that is the untuned build's, where it
        is.

        Nothing ships that is slower than the untuned build, or computes something else than the
        model: then the untuned build ships, and what is published is its own.

        Raises:
            JobFailed: the untuned build differs from ONNX Runtime as well.
        """
        name, compared = self.races.target.name, self._compared()
        self.races.journal.add_verdict(self.races.job.id, name, "model", None, compared)
        ships_tuned, parity, refused = self._checked()
        if not parity.passed:
            raise JobFailed(
                f"{name}: the compiled model's outputs differ from ONNX Runtime's "
                f"(largest relative error {parity.max_rel_err:.1e}); nothing is packaged",
                hint="The import or the compiler is wrong about this model; please report it.",
            )
        base, tuned = self._libraries()
        shown = None if self.races.target.device.is_emulated else compared
        why = "" if ships_tuned else _why_untuned(compared, shown, refused)
        self.previous.judge(ships_tuned)
        self.races.journal.add_event(self.races.job.id, PACKAGED, target=name, tunefarm=__version__)
        packaged = package(
            self.home,
            self.races.journal,
            self.races.job,
            self.races.target,
            self.races.program,
            tuned if ships_tuned else base,
            traces=self.races.tuned_traces() if ships_tuned else None,
            comparison=compared if ships_tuned else _with_itself(compared),
            parity=parity,
            why_untuned=why,
            conditions=cpu.conditions(),
            protocol=self.races.settled().to_dict(),
            wall_s=elapsed_s,
        )
        self.races.journal.add_artifact(
            self.races.job.id,
            name,
            self.races.job.name,
            packaged.digest,
            packaged.path,
            packaged.summary,
        )
        self.previous.drop()
        return why

    def packaged(self) -> Packaged:
        """The artifact on record."""
        rows = self.races.journal.artifacts(self.races.job.id)
        row = next(r for r in rows if r["target"] == self.races.target.name)
        return Packaged(Path(row["path"]), row["digest"], row["summary"])


def _why_untuned(
    compared: Comparison | None, shown: Comparison | None, refused: Parity | None
) -> str:
    """`shown` is of `compared` what may be told: times of an emulated device are none."""
    if compared is None:
        return "the tuned model was not timed in every process"
    if compared.verdict is Verdict.SLOWER:
        said = (
            f": {shown.speedup:.3g}x ({shown.low:.3g} to {shown.high:.3g}) as fast" if shown else ""
        )
        return f"the tuned model is slower{said}"
    # An older tunefarm's runtime, in a bundle or at the lab, does not tell how far it was off.
    off = f" (largest relative error {refused.max_rel_err:.1e})" if refused is not None else ""
    return f"the tuned model computes something else than the model{off}"


def _with_itself(compared: Comparison | None) -> Comparison | None:
    """The untuned build's own place in a comparison, where it is what ships."""
    if compared is None:
        return None
    return Comparison(compared.base_s, compared.base_s, 1.0, 1.0, 1.0, Verdict.SAME)
