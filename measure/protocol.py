"""The measurement protocol: every number that decides what a measurement is worth."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Protocol:
    """Stored with the results it made. Times in seconds, memory in bytes.

    Attributes:
        compile_limit_s: one candidate's build.
        run_limit_s: the most a candidate may run; see `run_limit`.
        run_floor_s: the least it is given.
        run_factor: times the incumbent's latency that it is given in between.
        memory_bytes: growth of the running process allowed.
        sample_s: one sample lasts at least this long (a fast kernel is called several times).
        screen_s: time for a candidate's samples, of which there are at least `screen_samples`.
        truncate_factor: a first sample slower than this many incumbents ends a screening.
        seeds: of the inputs a candidate must get right.
        canary_every: candidates between two runs of the canary.
        canary_drift: relative change of the canary at which a block counts as disturbed.
        race_top: candidates of a kernel that race against its untuned schedule.
        race_processes, race_rounds: fresh processes, and interleaved rounds in each.
        race_kernel_s: time for one kernel's rounds in one process, after the first two.
        race_process_s: time for all kernels' rounds in one process; many kernels share it.
        place_near: candidates of a kernel whose race times lie within this factor of each other are
            measured again inside the model; place_processes, place_s: fresh processes of that, and
            time for the watched inferences of each variant in one, at most `model_rounds`; where
            there is none for `place_rounds` of them, the race decides.
        final_processes, final_rounds: the same for the held-out run, winner against untuned. With
            fewer than six processes the bootstrap of their median cannot reach 95 %.
        model_processes, model_rounds, model_s: the same for the whole model.
        tail_calls, tail_s: inferences of the tuned model one after another in each of these
            processes, and time for them: in six, enough for a 99th percentile, of a model that
            takes no longer than 11 ms, and for a 90th of one that takes 110.
        slow_calls: calls in one process of what is `truncate_factor` times slower than the fastest
            and slower than a screening (a model: than `long_model_s`; one that takes longer than
            `model_s` is called once): its verdict is clear, its time everybody's. The first call
            counts as a sample only where it is the only one; it is then slower than others by what
            a first call costs: little, of such a time.
        slow_processes: of the finals' processes, so many call it at all before the others may be
            spared it (`judge.may_be_spared`).
        beyond: a kernel of a model finds its weights beyond the shared cache, what it works on
            beyond the cores' own: copies of both, so many caches' worth, take turns
            (`measure.rotation`); at most `most_copies` of each.
        resamples: of the bootstrap; confidence of its intervals; margin of a verdict.
    """

    compile_limit_s: float = 30.0
    run_limit_s: float = 30.0
    run_floor_s: float = 2.0
    run_factor: float = 10.0
    memory_bytes: int = 4 * 2**30
    sample_s: float = 0.002
    screen_s: float = 0.025
    screen_samples: int = 3
    truncate_factor: float = 3.0
    seeds: tuple[int, int] = (1, 2)
    canary_every: int = 32
    canary_drift: float = 0.10
    race_top: int = 4
    race_processes: int = 2
    race_rounds: int = 10
    race_kernel_s: float = 0.5
    race_process_s: float = 30.0
    place_near: float = 1.1
    place_processes: int = 3
    place_rounds: int = 5
    place_s: float = 1.0
    final_processes: int = 6
    final_rounds: int = 5
    model_processes: int = 6
    model_rounds: int = 20
    model_s: float = 6.0
    tail_calls: int = 170
    tail_s: float = 2.0
    slow_calls: int = 3
    slow_processes: int = 3
    beyond: float = 1.25
    most_copies: int = 64
    resamples: int = 10_000
    confidence: float = 0.95
    margin: float = 0.005
    seed: int = 0

    def kernel_s(self, kernels: int) -> float:
        """Seconds for each of `kernels` that race in one process."""
        return min(self.race_kernel_s, self.race_process_s / max(1, kernels))

    def screening_s(self, first_s: float, incumbent_s: float | None) -> float:
        """Seconds for a candidate's samples, in proportion to its promise: all of `screen_s` where
        its first sample is no slower than the incumbent, an eighth of it at twice that."""
        if incumbent_s is None:
            return self.screen_s
        return self.screen_s * min(1.0, (incumbent_s / first_s) ** 3)

    @property
    def long_model_s(self) -> float:
        """Seconds of an inference of which twenty take a third of the time of all."""
        return self.model_s / 60

    @property
    def slow_model_s(self) -> float:
        """Seconds of an inference from which on two of them take longer than all samples may."""
        return self.model_s / 4

    def slow_model(self, seconds: float) -> bool:
        return seconds > self.slow_model_s

    def run_limit(self, incumbent_s: float | None) -> float:
        """Seconds a candidate may take, all its runs together.

        It grows with the incumbent, because a kernel of 100 ms is gated and sampled in seconds.
        """
        wished = self.run_factor * (incumbent_s or self.run_limit_s)
        return min(self.run_limit_s, max(self.run_floor_s, wished))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
