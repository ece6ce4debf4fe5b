"""Candidates per second of the reference tuner, TVM's own MetaSchedule, on this machine.

    python benchmarks/reference_rate.py [--trials 64]

It tunes a 512x512x512 float32 matmul with MetaSchedule's defaults for the host (evolutionary
search, XGBoost cost model, local builder and runner), in a process of its own, and prints one JSON
document. Compare `candidates_per_s` with the one that `benchmarks/job_rate.py` reads off a job.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time

from tunefarm.devices.cpu import cpu_model, usable_cores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=64)
    trials = parser.parse_args().trials

    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    size = 512
    a, b = (te.placeholder((size, size), "float32", name=name) for name in "ab")
    k = te.reduce_axis((0, size), "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    mcpu = str(tvm.target.Target.from_device("cpu").attrs["mcpu"])
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": usable_cores()})
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        database = ms.tir_integration.tune_tir(
            mod=te.create_prim_func([a, b, c]),
            target=target,
            work_dir=directory,
            max_trials_global=trials,
            num_trials_per_iter=min(64, trials),
        )
        seconds = time.perf_counter() - started
        times = [
            float(r.run_secs[0])
            for r in database.get_all_tuning_records()
            if r.run_secs is not None
        ]
    sound = [t for t in times if t < 1e9]
    print(
        json.dumps(
            {
                "tuner": "MetaSchedule",
                "tvm": tvm.__version__,
                "cpu": cpu_model(),
                "cores": usable_cores(),
                "trials": trials,
                "measured": len(sound),
                "seconds": round(seconds, 2),
                "candidates_per_s": round(trials / seconds, 3),
                "best_gflops": round(2 * size**3 / min(sound) / 1e9, 1) if sound else None,
            }
        )
    )


if __name__ == "__main__":
    main()
