"""Figures behind docs/scaling.md's plan for a billion tasks: `python benchmarks/scaling.py`.

Measures, on this machine and with 100 features, the bytes and time of a task and the messages of
an iteration, then extrapolates in proportion to cores, bytes and workers. Needs an
idle machine; medians over several turns.
"""

from __future__ import annotations

import os
import statistics
import time

import numpy as np

import sharedspan as ss
from sharedspan.inputs.rows import validate_rows
from sharedspan.kernels.threads import n_threads
from sharedspan.objective import build_objective
from sharedspan.statistics.canonical import whitening
from sharedspan.statistics.task_statistics import gather

D, K, N = 100, 5, 100  # features, rank, rows per task
TASKS = 10**9
NODE = {"cores": 32, "sums": 300e9, "memory": 200e9, "network": 25e9 / 8}  # bytes, bytes/s
FILES = 2.85e6 * 92 / 2  # bytes/s per core from files to sums, by benchmarks/files.py
SHARDS = 4  # per node


def median_time(work, turns=5):
    work()
    seconds = []
    for _ in range(turns):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def measure_tasks(count=4000):
    """Bytes and core seconds per task, and the rate of the pass."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((count * N, D), dtype=np.float32)
    y, task = rng.standard_normal(count * N), np.repeat(np.arange(count), N)
    tasks, cores = validate_rows(X, y, task), n_threads()
    cost = {"build": median_time(lambda: gather(tasks, True, kind="gram"), 3) * cores / count}
    grams = gather(tasks, True, kind="gram").statistics
    cost["bytes"] = grams.nbytes / count
    began = time.perf_counter()
    grams.transform(whitening(grams))
    cost["whiten"] = (time.perf_counter() - began) * cores / count
    objective = build_objective(grams)
    B, W = rng.standard_normal((D, K)), rng.standard_normal((K, count))
    seconds = median_time(lambda: objective.gradients(B, W), 20)
    cost["pass"], cost["rate"] = seconds * cores / count, grams.packed.nbytes / seconds
    cost["profile"] = median_time(lambda: objective.profile(B, W), 20) * cores / count
    return cost


def measure_new_tasks(count=1000):
    """Core seconds per task in a given span."""
    sim = ss.simulate(n_tasks=count, n_features=D, rank=K, n_samples=N, random_state=0)
    new = ss.NewTaskRegressor(sim.representation)
    return median_time(lambda: new.fit(sim.X, sim.y, task=sim.task), 3) / count


def measure_messages(workers):
    """Seconds per iteration of a problem so small that only messages take time."""
    from distributed import Client, LocalCluster

    sim = ss.simulate(n_tasks=100, n_features=D, rank=K, n_samples=120, random_state=0)
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None,
                     silence_logs=50, memory_limit=0) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        cost = {}
        for length in (10, 60):
            model = ss.SharedSpanRegressor(
                rank=K, tol=0, max_iter=length, random_state=0, engine=client
            )
            cost[length] = median_time(lambda m=model: m.fit(sim.X, sim.y, task=sim.task), 3)
    return (cost[60] - cost[10]) / 50


def main():
    task, new = measure_tasks(), measure_new_tasks()
    messages = {workers: measure_messages(workers) for workers in (1, 2, 4)}
    per_worker = (messages[4] - messages[1]) / 3
    print(f"measured on {n_threads()} of {os.cpu_count()} cores, d = {D}, k = {K}, n = {N}")
    print(f"  sums of a task                {task['bytes'] / 1e3:.1f} kB")
    print(f"  rows to sums                  {N / task['build'] / 1e6:.2f} million rows/s per core")
    print(f"  whitening                     {task['whiten'] * 1e6:.0f} µs per task and core")
    print(f"  pass with both gradients      {task['pass'] * 1e6:.2f} µs per task and core, "
          f"{task['rate'] / 1e9:.0f} GB/s in all")  # fmt: skip
    print(f"  pass with the best W          {task['profile'] * 1e6:.2f} µs per task and core")
    print(f"  a new task in a given span    {new * 1e6:.0f} µs on one core")
    times = (f"{1e3 * seconds:.1f} ms with {workers}" for workers, seconds in messages.items())
    print(f"  messages of an iteration      {', '.join(times)} workers")
    nodes = int(np.ceil(TASKS * task["bytes"] / NODE["sums"]))
    cores = nodes * NODE["cores"]
    rows = TASKS * N * D * 4
    shard = (D * K + 4 * K**2 + 1) * 8
    print(f"extrapolated to {TASKS:.0e} tasks on nodes of {NODE['cores']} cores")
    print(f"  sums                          {TASKS * task['bytes'] / 1e12:.0f} TB, {nodes} nodes")
    print(f"  rows read and decoded         {rows / 1e12:.0f} TB, {rows / (cores * FILES):.0f} s")
    print(f"  rows shuffled, one way        {rows / (nodes * NODE['network']):.0f} s")
    print(f"  rows to sums                  {TASKS * task['build'] / cores:.0f} s")
    print(f"  whitening                     {TASKS * task['whiten'] / cores:.0f} s")
    packed = D * (D + 1) * 4
    print(f"  a pass, bound by memory       {TASKS * packed / (nodes * NODE['memory']):.1f} s")
    print(f"  messages of an iteration      {nodes * per_worker:.2f} s, "
          f"{SHARDS * nodes * shard / 1e6:.1f} MB back")  # fmt: skip
    print(f"  coefficients on the driver    {TASKS * D * 8 / 1e12:.1f} TB")
    print(f"  all tasks in a given span     {TASKS * new / cores:.0f} s")


if __name__ == "__main__":
    main()
