"""Few tasks: `python benchmarks/few_tasks.py [seed]`.

24 random sizes with 8 to 30 tasks of exact low rank. The root of the parameter error of
AdaptiveSpanRegressor as a ratio to that of SharedSpanRegressor with the true rank, by TPGD or by
the default solver, whichever is smaller; mean and largest of three data sets.
"""

import sys
import warnings

import numpy as np

import sharedspan as ss


def ratio(d, T, k, n, seed):
    sim = ss.simulate(n_tasks=T, n_features=d, rank=k, n_samples=n, noise=0.5, random_state=seed)
    models = (
        ss.AdaptiveSpanRegressor(),
        ss.SharedSpanRegressor(rank=k, solver="tpgd"),
        ss.SharedSpanRegressor(rank=k),
    )
    ours, *known = (
        ss.parameter_error(model.fit(sim.X, sim.y, task=sim.task).coef_, sim.coef) ** 0.5
        for model in models
    )
    return ours / min(known)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    means = []
    for i in range(24):
        d, k = int(rng.integers(5, 41)), int(rng.integers(1, 5))
        T = int(rng.integers(max(k + 2, 8), 31))
        n = int(rng.integers(max(6, d // 2), 2 * d + 1))
        ratios = [ratio(d, T, k, n, 100 * i + seed) for seed in range(3)]
        means.append(np.mean(ratios))
        print(
            f"d {d:2d}, T {T:2d}, k {k}, n {n:2d}: {means[-1]:.3f}, {max(ratios):.3f}", flush=True
        )
    print(f"largest mean {max(means):.3f}, mean of all {np.mean(means):.3f}")
