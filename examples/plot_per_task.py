"""
PerTaskRegressor: when is a task better off alone?
==================================================

*How many rows must a patient have before a regression of their own is as good as a shared model?*

Besides pooling, this baseline belongs in every comparison: a ridge regression for each task, which
learns nothing from the other tasks and whose penalty is chosen by marginal likelihood. We take the
patients of the Parkinsons table, give the estimators more and more of each patient's recordings,
and predict held-out ones.
"""

import matplotlib.pyplot as plt
import numpy as np

import sharedspan as ss

data = ss.datasets.load_parkinsons()
rng = np.random.default_rng(0)
order = rng.permutation(len(data.y))
place = np.empty(len(order), dtype=int)  # of a row in a random order of its patient's rows
for patient in np.unique(data.task):
    rows = order[data.task[order] == patient]
    place[rows] = np.arange(len(rows))

methods = {
    "each patient alone": ss.PerTaskRegressor(),
    "pooled": ss.PooledRegressor(),
    "adaptive": ss.AdaptiveSpanRegressor(),
}
counts = [5, 10, 20, 40, 80]
test = place >= 80
errors = {name: [] for name in methods}
for count in counts:
    train = place < count
    for name, method in methods.items():
        method.fit(data.X[train], data.y[train], task=data.task[train])
        wrong = method.predict(data.X[test], task=data.task[test]) - data.y[test]
        errors[name].append(np.sqrt(np.mean(wrong**2)))

fig, ax = plt.subplots()
for (name, error), mark in zip(errors.items(), "os^", strict=True):
    ax.plot(counts, error, marker=mark, label=name)
ax.set_xscale("log")
ax.set_xticks(counts, counts)
ax.minorticks_off()
ax.set(xlabel="recordings of each patient", ylabel="RMSE on other recordings", ylim=(0, None))
ax.legend()
plt.show()

for count, *values in zip(counts, *errors.values(), strict=True):
    print(f"{count:3d} recordings: " + "  ".join(f"{value:.2f}" for value in values))

# sphinx_gallery_start_ignore
alone, pooled, adaptive = errors.values()
assert alone[0] > 1.2 * adaptive[0]
assert alone[0] > pooled[0]
assert alone[-1] < 1.02 * adaptive[-1]
assert pooled[-1] > 1.5 * alone[-1]
# sphinx_gallery_end_ignore
# %%
# With five recordings a patient's own regression is no better than the pooled regression, and the
# adaptive model is well ahead of both. With eighty the patient's own regression has caught up:
# sharing helps if rows are scarce, and does no harm if they are not. The pooled model never
# catches up, because patients differ (see :ref:`sphx_glr_gallery_plot_adaptive.py`).
