"""Fits on a Dask cluster of local worker processes: overhead, scaling, and lost workers.

    python benchmarks/cluster.py            all parts, some minutes
    python benchmarks/cluster.py --quick    small sizes, a minute
    python benchmarks/cluster.py --part overhead | build | kills

overhead   milliseconds per iteration in excess of the local engine, on a problem so small that
           the pass itself takes no time
build      rows per second from Parquet files to statistics, with one worker and with two in turn
kills      a worker is killed by its process id at a random time, 20 times: ten while statistics are
           built, ten while the solver iterates; the largest difference to an undisturbed fit

Times are medians over interleaved turns.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from distributed import Client, LocalCluster

import sharedspan as ss
from sharedspan.distributed.sources import gather_on_cluster
from sharedspan.inputs.external_sort import open_files


def start(workers):
    cluster = LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None,
        silence_logs=50, memory_limit=0,
    )  # fmt: skip
    return cluster, Client(cluster)


def overhead(quick):
    sim = ss.simulate(n_tasks=200, n_features=20, rank=3, n_samples=60, random_state=0)
    cluster, client = start(2)
    seconds = {}
    for _ in range(3 if quick else 7):
        for engine in ("local", client):
            for length in (20, 120):
                model = ss.SharedSpanRegressor(
                    rank=3, tol=0, max_iter=length, random_state=0, engine=engine
                )
                began = time.perf_counter()
                model.fit(sim.X, sim.y, task=sim.task)
                spent = time.perf_counter() - began
                seconds.setdefault((engine == "local", length), []).append(spent)
    cost = {key: statistics.median(values) for key, values in seconds.items()}
    local, remote = ((cost[is_local, 120] - cost[is_local, 20]) / 100 for is_local in (True, False))
    print(f"overhead  {1e3 * (remote - local):.1f} ms per iteration with two workers (TPGD)")
    client.close()
    cluster.close()


def write_files(folder, tasks, rows, features):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    for part in range(16):
        n = rows // 16
        columns = {"task": rng.integers(0, tasks, n), "y": rng.standard_normal(n)}
        columns |= {
            f"x{j}": rng.standard_normal(n, dtype=np.float32) for j in range(features)
        }  # fmt: skip
        pq.write_table(pa.table(columns), Path(folder) / f"part-{part:02d}.parquet")


def build(quick):
    rows, tasks, features = (400_000, 4_000, 20) if quick else (4_000_000, 40_000, 20)
    with tempfile.TemporaryDirectory() as folder:
        write_files(folder, tasks, rows, features)
        files = open_files(folder, task="task", target="y")
        clusters = {workers: start(workers) for workers in (1, 2)}
        seconds = {1: [], 2: []}
        for turn in range(3 if quick else 6):
            for workers, (_, client) in clusters.items():
                began = time.perf_counter()
                built = gather_on_cluster(
                    ss.DaskEngine(client, shards=8), files, True,
                    common_scale=False, kind="gram", keep_rows=False,
                )  # fmt: skip
                if turn:  # the first run compiles
                    seconds[workers].append(time.perf_counter() - began)
                built.statistics.close()
        for cluster, client in clusters.values():
            client.close()
            cluster.close()
    one, two = (statistics.median(seconds[workers]) for workers in (1, 2))
    print(
        f"build     {rows:,} rows x {features}, {tasks:,} tasks: {one:.2f} s with one worker, "
        f"{two:.2f} s with two: {one / two:.2f} times as fast"
    )


def kills(quick):
    sim = ss.simulate(n_tasks=3000, n_features=20, rank=3, n_samples=60, random_state=0)
    settings = {"rank": 3, "tol": 0, "max_iter": 100, "random_state": 0}
    expected = ss.SharedSpanRegressor(**settings).fit(sim.X, sim.y, task=sim.task).coef_
    rng, worst, longest = random.Random(0), 0.0, 0.0
    count = 6 if quick else 20
    for run in range(count):  # each on a separate cluster
        cluster, client = start(2)
        engine = ss.DaskEngine(client, checkpoint_every=20)
        model = ss.SharedSpanRegressor(**settings, engine=engine)
        model.fit(sim.X, sim.y, task=sim.task)
        began = time.perf_counter()
        model.fit(sim.X, sim.y, task=sim.task)
        whole = time.perf_counter() - began
        pid = rng.choice(list(client.run(os.getpid).values()))
        delay = rng.uniform(0, 0.3 * whole) if run % 2 else rng.uniform(0.3 * whole, 0.95 * whole)
        timer = threading.Timer(delay, os.kill, (pid, signal.SIGKILL))
        timer.start()
        began = time.perf_counter()
        model.fit(sim.X, sim.y, task=sim.task)
        longest = max(longest, time.perf_counter() - began)
        timer.join()
        worst = max(worst, np.abs(model.coef_ - expected).max())
        client.close()
        cluster.close()
    print(
        f"kills     {count} runs, each with a worker killed: largest difference {worst:.1e}; "
        f"{whole:.1f} s undisturbed, at most {longest:.1f} s disturbed"
    )


PARTS = {"overhead": overhead, "build": build, "kills": kills}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", action="append", choices=list(PARTS))
    options = parser.parse_args()
    for name in options.part or PARTS:
        PARTS[name](options.quick)


if __name__ == "__main__":
    main()
