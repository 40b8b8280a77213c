"""
PooledRegressor: are the tasks different at all?
================================================

*Before you try anything clever: is one slope vector for all tasks as good as separate ones?*

Every comparison needs this baseline. It fits one set of slopes to all rows, and an intercept for
each task. How good it is depends on how much the tasks differ, so we simulate tasks around a common
slope vector of length one and let their distance from it grow.
"""

import matplotlib.pyplot as plt
import numpy as np

import sharedspan as ss

distances = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
methods = {
    "pooled": ss.PooledRegressor(),
    "each task alone": ss.PerTaskRegressor(),
    "adaptive": ss.AdaptiveSpanRegressor(),
}
errors = {name: [] for name in methods}
for distance in distances:
    sim = ss.simulate(
        n_tasks=50, n_features=20, rank=20, n_samples=40, noise=1.0,
        signal=distance, mean_slope=1.0, intercept=1.0, random_state=0,
    )  # fmt: skip
    for name, method in methods.items():
        method.fit(sim.X, sim.y, task=sim.task)
        errors[name].append(ss.parameter_error(method.coef_, sim.coef) / 50)

fig, ax = plt.subplots()
for (name, error), mark in zip(errors.items(), "os^", strict=True):
    ax.loglog(distances, error, marker=mark, label=name)
ax.set_xticks(distances, distances)
ax.set(xlabel="distance of a task to the common slopes", ylabel="squared error of a task's slopes")
ax.legend()
plt.show()

# sphinx_gallery_start_ignore
pooled, alone, adaptive = errors.values()
assert pooled[0] < alone[0] / 10
assert pooled[-1] > 2 * alone[-1]
assert all(a < 1.15 * min(p, s) for a, p, s in zip(adaptive, pooled, alone, strict=True))
# sphinx_gallery_end_ignore
# %%
# If tasks are alike, pooling is the best of the three, and if they differ a lot, the worst.
# ``AdaptiveSpanRegressor`` adapts to either case, and is better than both in between.
#
# On a real table
# ---------------
#
# The table has 1,994 communities in 46 states and 100 features; the response is violent crimes per
# head, scaled to [0, 1]. We hold out every fourth row.

data = ss.datasets.load_communities_crime()
held_out = np.arange(len(data.y)) % 4 == 0
held_out &= np.isin(data.task, data.task[~held_out])
rmse = {}
for name, method in methods.items():
    method.fit(data.X[~held_out], data.y[~held_out], task=data.task[~held_out])
    wrong = method.predict(data.X[held_out], task=data.task[held_out]) - data.y[held_out]
    rmse[name] = np.sqrt(np.mean(wrong**2))
    print(f"{name:16s} RMSE {rmse[name]:.4f}")

# sphinx_gallery_start_ignore
assert rmse["pooled"] < 0.9 * rmse["each task alone"]
assert abs(rmse["adaptive"] / rmse["pooled"] - 1) < 0.02
# sphinx_gallery_end_ignore

# %%
# With a mean of 43 rows per state, a quarter of them held out, and 100 features a single state has
# too little data: pooling is well ahead of separate regressions, and the adaptive model is about as
# good as pooling. One split cannot tell which of these two is better; ``ss.compare`` repeats the
# split and gives standard errors.
