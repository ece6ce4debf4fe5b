"""Packaging: everything a release pipeline needs of one target's result, in one file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import re
import sys
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.devices.cpu import is_lent
from tunefarm.devices.device import EMULATED, Device
from tunefarm.frontend.pass_log import BASELINE
from tunefarm.frontend.program import Program
from tunefarm.home import Home, atomically
from tunefarm.measure import weights
from tunefarm.measure.bundles.archive import pack
from tunefarm.measure.gate import Parity
from tunefarm.measure.stats import Comparison, Verdict
from tunefarm.results.artifact_file import MANIFEST
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.results.manifest import LIBRARY, SCHEMA, WEIGHTS
from tunefarm.results.pieces import described
from tunefarm.results.sbom import sbom
from tunefarm.results.shipped import previous
from tunefarm.search.candidate import IN_MATRICES, MATRIX_ATTENTION

_ISA = re.compile(
    r"avx\w*|fma|f16c|bmi[12]|sse\w*|ssse3|popcnt|movbe|abm|aes|vaes|pclmulqdq|vpclmulqdq|adx|"
    r"amx_\w+|gfni|asimd\w*|sve\w*|fphp|crc32|atomics|i8mm|bf16"
)
"""Processor features that generated code may use, by the kernel's names for them."""


@dataclass(frozen=True)
class Packaged:
    """A packed artifact, and its target's part of the job's result."""

    path: Path
    digest: str
    summary: dict[str, Any]


@dataclass(frozen=True)
class _Seen:
    """What is known of a packaged model: see `whole.service` and `shipped.previous`; `why_untuned`
    it is the untuned build, where it is."""

    comparison: Comparison | None
    parity: Parity | None
    service: dict[str, float | None] | None
    previous: dict[str, Any] | None
    why_untuned: str


def package(
    home: Home,
    journal: Journal,
    job: Job,
    target: JobTarget,
    program: Program,
    library: Path,
    *,
    traces: dict[str, str] | None,
    comparison: Comparison | None,
    parity: Parity | None,
    conditions: dict[str, Any],
    protocol: dict[str, Any],
    wall_s: float,
    why_untuned: str = "",
) -> Packaged:
    """Write the artifact, whole or not at all. Without `traces`, it is the untuned build's, as is
    `comparison` then, and `why_untuned` says why; without `parity`, nothing has run it, not even a
    GPU of paper; `protocol` is what its numbers were measured by. Times of an emulated device are
    none: the verdict is UNMEASURED."""
    from tunefarm.results import evidence, whole  # pandas takes a third of a second to import

    if target.device.is_emulated:
        comparison = None  # what it computes has been seen, and not how fast it is
    seen = _Seen(comparison, parity, None, None, why_untuned)
    if comparison is not None:
        build = "base" if traces is None else "tuned"
        service = whole.service(journal, job.id, target.name, build)
        before = previous(journal, job.id, target.name)
        seen = _Seen(comparison, parity, service, before, why_untuned)
    parts: dict[str, bytes | Path] = {
        LIBRARY: library.read_bytes(),
        WEIGHTS: weights.beside(library),
        "schedules.json": _json(_schedules(target, program, traces)),
        "sbom.cdx.json": sbom(job, target, program),
        "evidence/measurements.parquet": evidence.measurements(journal, job.id, target),
        "evidence/verdicts.parquet": evidence.verdicts(journal, job.id, target),
        "evidence/parity.json": _json(_parity(parity, target)),
        "evidence/environment.json": _json(
            {"device": target.device.to_dict(), "conditions": conditions, "protocol": protocol}
        ),
        "evidence/import.json": _json(program.evidence),
        "evidence/model.json": _json(
            [] if target.device.is_emulated else whole.document(journal, job.id, target.name)
        ),
        "evidence/in_place.json": _json(evidence.in_place(journal, job.id, target.name)),
    }
    manifest = _json(_manifest(journal, job, target, program, parts, traces, seen, wall_s))
    digest = hashlib.sha256(manifest).hexdigest()
    label = re.sub(r"[^A-Za-z0-9._-]", "-", f"{job.name}-{target.name}")
    path = home.artifacts / f"{label}-{digest[:12]}.tfa"
    _pack(path, {MANIFEST: manifest, **parts})
    summary = _summary(journal, job, target, path, digest, seen, wall_s)
    return Packaged(path, digest, summary)


def _pack(path: Path, parts: dict[str, bytes | Path]) -> None:
    """A zip file with fixed times and order: equal parts, equal bytes. Parts that are files, which
    weights are, are stored as they are: there is nothing to compress, and they are read in one go.
    """
    with atomically(path) as file, zipfile.ZipFile(file, "w", compresslevel=1) as archive:
        for name, part in parts.items():
            pack(archive, name, part, stored=isinstance(part, Path))


def _listed(part: bytes | Path) -> dict[str, Any]:
    """Length and digest of a part, of a file's pieces too."""
    if isinstance(part, bytes):
        return {"bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()}
    return described(part)


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()


def _schedules(
    target: JobTarget, program: Program, traces: dict[str, str] | None
) -> dict[str, Any]:
    """Enough to build the same library again from the same model."""
    if traces is None:
        program, traces = _untuned(program), {}
    return {
        "target": target.resolved.to_dict(),
        "toolchain": target.toolchain,
        "model_digest": program.evidence["digest"],
        "layout": program.evidence["layout"],
        "passes": [entry["pass"] for entry in program.evidence["passes"]],
        "kernels": {
            task.id: {
                "name": task.name,
                "functions": list(task.functions),
                "trace": json.loads(traces[task.id]) if task.id in traces else None,
            }
            for task in program.tasks
        },
    }


def _features(device: Device, traces: dict[str, str] | None) -> list[str]:
    """Of the processor, that the library may need; what the system has to lend only where it is in
    use."""
    marks = (IN_MATRICES, MATRIX_ATTENTION)
    in_use = any(mark in trace for trace in (traces or {}).values() for mark in marks)
    found = (one for one in device.features if _ISA.fullmatch(one))
    return [one for one in found if in_use or not is_lent(one)]


def _manifest(
    journal: Journal,
    job: Job,
    target: JobTarget,
    program: Program,
    parts: dict[str, bytes | Path],
    traces: dict[str, str] | None,
    seen: _Seen,
    wall_s: float,
) -> dict[str, Any]:
    shipped = "untuned" if traces is None or seen.why_untuned else "tuned"
    if traces is None:
        program, traces = _untuned(program), {}
    device = target.device
    verdicts = {} if device.is_emulated else journal.verdicts(job.id, target.name)
    files = {name: _listed(part) for name, part in sorted(parts.items())}
    return {
        "schema": SCHEMA,
        "complete": True,
        "name": job.name,
        "job": job.id,
        "shipped": shipped,
        "why_untuned": seen.why_untuned,
        "model": {
            "digest": program.evidence["digest"],
            "source": job.model_source,
            "producer": program.evidence["producer"],
            "opset": program.evidence["opset"],
        },
        "target": target.resolved.to_dict(),
        "device": {"sku": device.sku, "fingerprint": device.fingerprint, "id": device.id},
        "requires": {
            "os": sys.platform,
            "machine": platform.machine(),
            "cpu_features": _features(device, traces),
            "tvm_runtime": dict(device.toolchain)["tvm"],
            **_gpu(target),
        },
        "toolchain": dict(device.toolchain),
        "threads": device.cores,
        "precision": sorted({spec.dtype for spec in program.inputs}),
        "computed_in": program.precision,
        "inputs": [dataclasses.asdict(spec) for spec in program.inputs],
        "outputs": [dataclasses.asdict(spec) for spec in program.outputs],
        "shape_profiles": [{"guards": {s.name: list(s.shape) for s in program.inputs}}],
        "passes": program.evidence["passes"],
        "layout": program.evidence["layout"],
        "partition": {"tvm": program.evidence["kernels"], "fallback_share": 0.0},
        "memory": {
            "parameter_bytes": program.evidence["parameter_bytes"],
            "library_bytes": files[LIBRARY]["bytes"],
            "weight_bytes": files[WEIGHTS]["bytes"],
        },
        "kernels": [
            {
                "workload": task.id,
                "name": task.name,
                "weight": task.weight,
                "tuned": task.id in traces,
                **_verdict_row(verdicts.get(task.id)),
            }
            for task in program.tasks
        ],
        "result": {**_result(seen), "parity": _parity(seen.parity, target)},
        "wall_s": round(wall_s, 3),
        "files": files,
    }


def _untuned(program: Program) -> Program:
    """The program as the plain build has it: without the change of layout, and with nothing rounded
    that somebody allowed to be."""
    passes = program.evidence["passes"]
    ends = [place for place, one in enumerate(passes, 1) if one["detail"] == BASELINE]
    passes = passes[: max(ends, default=len(passes))]
    evidence_ = {**program.evidence, "layout": "as imported", "passes": passes}
    evidence_["precision"] = program.evidence.get("untuned_precision", program.precision)
    return dataclasses.replace(program, evidence=evidence_)


def _gpu(target: JobTarget) -> dict[str, Any]:
    """Which GPUs run it, and which driver it takes: machine code of one architecture runs on later
    ones of the same major version; a driver runs what its own CUDA or an older one made."""
    if target.resolved.kind != "cuda":
        return {}
    made_by = re.search(r"\b(?:nvcc|nvrtc)-(\d+)", target.toolchain)
    assert made_by is not None, "a cuda target's toolchain names its compiler"
    return {"gpu": {"arch": target.resolved.get("arch"), "cuda": int(made_by[1])}}


def _parity(parity: Parity | None, target: JobTarget) -> dict[str, Any]:
    """And what it was that ran it: where no device is, a GPU of paper may."""
    if parity is None:
        return {"max_abs_err": None, "max_rel_err": None, "passed": None}
    return {**dataclasses.asdict(parity), "ran_on": target.device.sku or EMULATED}


def _verdict_row(row: dict[str, Any] | None) -> dict[str, Any]:
    keys = ("verdict", "base_s", "tuned_s", "speedup", "low", "high")
    return {key: row[key] for key in keys} if row else {"verdict": Verdict.UNMEASURED.value}


def _result(seen: _Seen) -> dict[str, Any]:
    """Of the whole model."""
    more = {"service": seen.service, "previous": seen.previous}
    return {**_comparison(seen.comparison), **more}


def _comparison(comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        nothing = dict.fromkeys(("baseline_ms", "tuned_ms", "speedup", "speedup_ci95"))
        return {**nothing, "verdict": Verdict.UNMEASURED.value}
    return {
        "baseline_ms": round(comparison.base_s * 1e3, 6),
        "tuned_ms": round(comparison.tuned_s * 1e3, 6),
        "speedup": round(comparison.speedup, 4),
        "speedup_ci95": [round(comparison.low, 4), round(comparison.high, 4)],
        "verdict": comparison.verdict.value,
    }


def _summary(
    journal: Journal,
    job: Job,
    target: JobTarget,
    path: Path,
    digest: str,
    seen: _Seen,
    wall_s: float,
) -> dict[str, Any]:
    """The target's entry in `submit --json`."""
    name, parity = target.name, seen.parity
    failures = Counter(row["kind"] for row in journal.failures(job.id, name))
    finite = parity is not None and math.isfinite(parity.max_rel_err)
    return {
        "artifact": str(path),
        "digest": digest,
        "tasks": len(journal.tasks(job.id, name)),
        "candidates": len(journal.measurements(job.id, name, ("screen",))),
        "failures": dict(sorted(failures.items())),
        **_result(seen),
        "why_untuned": seen.why_untuned,
        "parity": {
            **_parity(parity, target),
            **({} if finite else {"max_abs_err": None, "max_rel_err": None}),
        },
        "wall_s": round(wall_s, 3),
    }
