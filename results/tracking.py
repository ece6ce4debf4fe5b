"""MLflow, written from the journal: it may lag or be down, and never decides anything.

A parent run per job, a child run per target. What has been written is itself on record (the
``tracked`` table), so a later call writes the rest: an outage of MLflow costs a job nothing.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from tunefarm.errors import TunefarmError, UsageError
from tunefarm.home import Home
from tunefarm.measure.stats import Verdict
from tunefarm.results import evidence
from tunefarm.results.alias import alias_of, registered_name, takes_over, version_tags
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.results.reported import reported
from tunefarm.results.shipped import packaged_by
from tunefarm.results.uris import without_password

EXPERIMENT = "tunefarm"
_BATCH = 900  # MLflow takes 1000 metrics a call


def prepare_environment() -> None:
    """Short retries (a dead server would otherwise block for four minutes), no telemetry, and
    nothing on our standard output."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")


def sync_job(journal: Journal, job_id: str, uri: str) -> str:
    """Write what MLflow lacks of a job; empty when it has everything, else why not."""
    prepare_environment()
    try:
        _Sync(journal, journal.job(job_id), uri).run()
    except TunefarmError:
        raise
    except Exception as error:  # MLflow raises whatever its store's driver raises
        said = str(error).splitlines()[0] if str(error) else repr(error)
        return f"MLflow at {without_password(uri)}: {said.replace(uri, without_password(uri))}"
    return ""


def experiment_of(client: Any, name: str, home: Home | None) -> str:
    """Its id; a new one keeps its files in `home`, or where the server says."""
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    location = home.mlflow_files.as_uri() if home is not None else None
    return str(client.create_experiment(name, artifact_location=location))


class _Sync:
    def __init__(self, journal: Journal, job: Job, uri: str) -> None:
        from mlflow import MlflowClient

        self.journal, self.job, self.uri = journal, job, uri
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self.known = journal.tracked(job.id, uri)

    def once(self, what: str) -> bool:
        return what not in self.known

    def note(self, what: str, value: str = "1") -> None:
        self.journal.add_tracked(self.job.id, self.uri, what, value)
        self.known[what] = value

    def run(self) -> None:
        home = self.journal.home if self.uri.startswith("sqlite:") else None
        experiment = experiment_of(self.client, EXPERIMENT, home)
        parent = self._run("run", experiment, self.job.name, {})
        status = self.journal.status(self.job.id)
        ended = status in ("succeeded", "failed", "cancelled")
        targets = self.journal.targets(self.job.id)
        if self.once("params"):
            self._describe(parent, targets)
        for target in targets:
            child = self._run(
                f"run:{target.name}",
                experiment,
                f"{self.job.name} / {target.name}",
                {"mlflow.parentRunId": parent, "tunefarm.target": target.resolved.text},
            )
            if self.once(f"params:{target.name}"):
                self.client.log_batch(child, params=self._params(target.resolved.text))
                self.note(f"params:{target.name}")
            self._curve(child, target)
            if ended and self.once(f"result:{target.name}:{status}"):
                self._result(parent, child, target)
                self.note(f"result:{target.name}:{status}")
        if ended and self.once(f"ended:{status}"):
            state = {"succeeded": "FINISHED", "failed": "FAILED"}.get(status, "KILLED")
            for target in targets:
                self.client.set_terminated(self.known[f"run:{target.name}"], state)
            self._report(parent)
            self.client.set_terminated(parent, state)
            self.note(f"ended:{status}")

    def _run(self, what: str, experiment: str, name: str, tags: dict[str, str]) -> str:
        if what not in self.known:
            tags = {**tags, "tunefarm.run": f"{self.job.id} {what}"}
            found = self.client.search_runs(
                [experiment], f"tags.`tunefarm.run` = '{tags['tunefarm.run']}'", max_results=1
            )
            if found:  # made by a sync that was cut off before it could note it
                self.note(what, found[0].info.run_id)
                return self.known[what]
            everything = {
                "mlflow.runName": name,
                "mlflow.source.name": "tunefarm",
                "tunefarm.job": self.job.id,
                **tags,
            }
            run = self.client.create_run(
                experiment, int(self.job.created * 1000), tags=everything, run_name=name
            )
            self.note(what, run.info.run_id)
        return self.known[what]

    def _params(self, target: str) -> list[Any]:
        """What was asked for: on the parent and on every child, so that either can be compared."""
        from mlflow.entities import Param

        options = self.job.options
        params = {
            "model": self.job.model_source,
            "model_digest": self.job.model_digest[:16],
            "target": target,
            "trials": options["trials"],
            "budget_s": options["budget_s"],
            "strategy": options["strategy"],
            "seed": options["seed"],
        }
        return [Param(k, str(v)) for k, v in params.items() if v is not None]

    def _describe(self, parent: str, targets: list[JobTarget]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        options = self.job.options
        self.client.log_batch(parent, params=self._params(",".join(t.name for t in targets)))
        model = Dataset(
            name=self.job.model_source,
            digest=self.job.model_digest[:32],
            source_type="local",
            source=str(options["model"]),
        )
        self.client.log_inputs(
            parent, [DatasetInput(model, [InputTag("mlflow.data.context", "model")])]
        )
        environment = {t.name: t.device.to_dict() for t in targets}
        self.client.log_dict(parent, environment, "environment.json")
        self.client.log_dict(parent, self.job.protocol, "protocol.json")
        self.note("params")

    def _curve(self, child: str, target: JobTarget) -> None:
        """Best so far, one point per measured candidate; only the points not yet written."""
        from mlflow.entities import Metric

        curve = evidence.best_so_far(self.journal, self.job.id, target.name)
        key = f"curve:{target.name}"
        written = max(
            (int(k.rsplit(":", 1)[1]) for k in self.known if k.startswith(key + ":")), default=0
        )
        rows = [
            Metric("best_latency_ms", float(row.ms), int(row.time * 1000), int(row.trial))
            for row in curve.iloc[written:].itertuples()
        ]
        for start in range(0, len(rows), _BATCH):
            self.client.log_batch(child, metrics=rows[start : start + _BATCH])
        if rows:
            self.note(f"{key}:{len(curve)}")

    def _result(self, parent: str, child: str, target: JobTarget) -> None:
        from tunefarm.results import plots  # its import is no part of the wait before a job's start

        journal, job = self.journal, self.job.id
        kernels = evidence.kernel_table(journal, job, target.name)
        tables = {
            "kernels.json": kernels,
            "candidates.json": evidence.candidate_table(journal, job, target.name),
        }
        there = {entry.path for entry in self.client.list_artifacts(child)}
        for file, table in tables.items():
            if table.empty:
                continue
            if file in there:  # of a life that failed; a second log_table would append
                self.client.log_text(child, table.to_json(orient="split", index=False), file)
            else:
                self.client.log_table(child, table, file)
        model = journal.verdicts(job, target.name).get("model")
        untuned = {target.name: model["base_s"] * 1e3} if model and model["base_s"] else {}
        curve = evidence.best_so_far(journal, job, target.name)
        figures = {
            "best_latency.png": plots.best_over_trials({target.name: curve}, untuned),
            "kernel_speedups.png": plots.kernel_speedups(kernels, target.name),
            "model_samples.png": plots.model_samples(
                *evidence.model_samples_ms(journal, job, target.name), target.name
            ),
        }
        for name, figure in figures.items():
            self.client.log_figure(child, figure, f"plots/{name}")
        artifact = next((a for a in journal.artifacts(job) if a["target"] == target.name), None)
        if artifact is not None:
            self._log_artifact(parent, child, target, artifact)

    def _log_artifact(
        self, parent: str, child: str, target: JobTarget, artifact: dict[str, Any]
    ) -> None:
        from mlflow.entities import Metric

        summary = artifact["summary"]
        stamp = int(artifact["time"] * 1000)
        numbers = {
            "baseline_ms": summary["baseline_ms"],
            "tuned_ms": summary["tuned_ms"],
            "speedup": summary["speedup"],
            "candidates": summary["candidates"],
            "failures": sum(summary["failures"].values()),
            "kernels": summary["tasks"],
            "wall_s": summary["wall_s"],
            "max_rel_err": summary["parity"]["max_rel_err"],
        }
        numbers |= summary.get("service") or {}
        if (previous := summary.get("previous")) and previous["speedup"]:
            numbers["over_previous"] = previous["speedup"]
            numbers["over_previous_low"], numbers["over_previous_high"] = previous["speedup_ci95"]
        if summary["speedup_ci95"]:
            numbers["speedup_low"], numbers["speedup_high"] = summary["speedup_ci95"]
        metrics = [Metric(k, float(v), stamp, 0) for k, v in numbers.items() if v is not None]
        self.client.log_batch(child, metrics=metrics)
        of = _metric_name(target.name)
        prefixed = [Metric(f"{of}.{m.key}", m.value, stamp, 0) for m in metrics]
        self.client.log_batch(parent, metrics=prefixed)
        self.client.set_tag(child, "tunefarm.verdict", summary["verdict"])
        self.client.set_tag(child, "tunefarm.digest", artifact["digest"])
        path = Path(artifact["path"])
        self.client.log_artifact(child, str(path), "artifact")
        if summary["verdict"] != Verdict.UNMEASURED:  # nobody is to deploy what nobody has run
            self._register(child, target, artifact)

    def _register(self, child: str, target: JobTarget, artifact: dict[str, Any]) -> None:
        """A version of the model's name; its alias is the target."""
        from mlflow.exceptions import MlflowException

        name = registered_name(self.job.name)
        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        source = f"{self.client.get_run(child).info.artifact_uri}/artifact"
        by = packaged_by(self.journal, self.job.id, target.name)
        tags = version_tags(self.job, target, artifact, by)
        mine = self.client.search_model_versions(f"name = '{name}' and run_id = '{child}'")
        alike = [v for v in mine if v.tags.get("tunefarm.digest") == artifact["digest"]]
        version = (  # there is one already where a sync ended before it could note it
            alike[0]
            if alike
            else self.client.create_model_version(name, source=source, run_id=child, tags=tags)
        )
        alias = alias_of(target.name)
        holder = self._holder(name, alias)
        if holder is not None and not takes_over(tags, holder.tags):
            said = f"{alias} stays with version {holder.version}"
            self.client.set_model_version_tag(name, version.version, "tunefarm.alias", said)
            return
        self.client.set_registered_model_alias(name, alias, version.version)

    def _holder(self, name: str, alias: str) -> Any:
        """The version that the alias stands for; None where there is none yet."""
        from mlflow.exceptions import MlflowException

        try:
            return self.client.get_model_version_by_alias(name, alias)
        except MlflowException as error:  # also what a server says that is down for a moment
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def _report(self, parent: str) -> None:
        from tunefarm.results import plots, report

        with tempfile.TemporaryDirectory() as directory:
            try:
                path = reported(self.journal, self.job)
            except OSError:  # a home that cannot be written is no reason for MLflow to have less
                path = report.write(self.journal, self.job, Path(directory) / "report.html")
            self.client.log_artifact(parent, str(path))
        frames = {
            t.name: evidence.best_so_far(self.journal, self.job.id, t.name)
            for t in self.journal.targets(self.job.id)
        }
        if any(not frame.empty for frame in frames.values()):
            figure = plots.best_over_trials(frames, {})
            self.client.log_figure(parent, figure, "plots/best_latency.png")


def _metric_name(target: str) -> str:
    """A metric's name may hold letters, digits, and ``_-. :/``."""
    return re.sub(r"[^A-Za-z0-9_.: /-]", "-", target)


def pull(home: Home, uri: str, name: str, alias: str | None, into: Path) -> tuple[Path, str]:
    """Fetch an artifact from the registry into the directory `into`: the alias, without which the
    name must have just one, is resolved once, to a version whose digest is returned with the file.

    Raises:
        TunefarmError: no such model, alias or file.
        UsageError: the name has several aliases, and none is named.
    """
    prepare_environment()
    from mlflow import MlflowClient
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    name, alias = registered_name(name), alias_of(alias) if alias else None
    try:
        newest = client.get_model_version_by_alias(name, alias or _only_alias(client, name))
    except MlflowException as error:
        wanted, place = f"{name}@{alias}" if alias else name, without_password(uri)
        raise TunefarmError(
            f"the registry at {place} has no {wanted}: {str(error).splitlines()[0]}",
            hint="List what there is: tunefarm artifacts list",
        ) from error
    if not {"tunefarm.file", "tunefarm.digest"} <= set(newest.tags):
        raise TunefarmError(f"version {newest.version} of {name} is not an artifact of tunefarm's")
    file = newest.tags["tunefarm.file"]
    try:
        location = download_artifacts(
            artifact_uri=f"{newest.source}/{file}", dst_path=str(into), tracking_uri=uri
        )
    except (MlflowException, OSError) as error:
        raise TunefarmError(f"{file} cannot be fetched: {str(error).splitlines()[0]}") from error
    return Path(location), newest.tags["tunefarm.digest"]


def _only_alias(client: Any, name: str) -> str:
    """Which one is meant by a name alone.

    Raises:
        UsageError: it has several.
        TunefarmError: it has none.
    """
    aliases = sorted(client.get_registered_model(name).aliases)
    if len(aliases) == 1:
        return str(aliases[0])
    if aliases:
        named = ", ".join(f"{name}@{alias}" for alias in aliases)
        raise UsageError(f"{name} is several: {named}", hint="Name one of them.")
    raise TunefarmError(f"no version of {name} has an alias", hint="Name one that has been tuned.")
