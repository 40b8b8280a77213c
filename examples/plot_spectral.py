"""
SpectralRegressor: the span in one shot
=======================================

*Fit every task alone, look at all the coefficient vectors together, and take the directions that
stand out. Is that enough?*

That is the spectral estimator: separate least squares, then a singular value decomposition. It
needs no starting values and no iterations. It does need rows.
"""

import matplotlib.pyplot as plt
import numpy as np

import sharedspan as ss

d, T, k = 20, 400, 2
counts = [5, 10, 20, 30, 40, 80, 160, 320]
errors = {"spectral": [], "shared span": []}
for count in counts:
    sim = ss.simulate(n_tasks=T, n_features=d, rank=k, n_samples=count, random_state=0)
    floor = ss.error_floor(count, d, T, k, 0.5)
    spectral = ss.SpectralRegressor(rank=k, random_state=0).fit(sim.X, sim.y, task=sim.task)
    shared = ss.SharedSpanRegressor(rank=k, random_state=0)
    shared.fit(sim.X, sim.y, task=sim.task)
    errors["spectral"].append(ss.parameter_error(spectral.coef_, sim.coef) / floor)
    errors["shared span"].append(ss.parameter_error(shared.coef_, sim.coef) / floor)

fig, ax = plt.subplots()
for (name, error), mark in zip(errors.items(), "so", strict=True):
    ax.loglog(counts, error, marker=mark, label=name)
ax.axvline(d, color="C3", ls=":", label=f"as many rows as features, {d}")
ax.axhline(1, color="black", lw=1)
ax.set_xticks(counts, counts)
ax.minorticks_off()
ax.set(xlabel="rows per task", ylabel="parameter error / floor")
ax.legend()
plt.show()

for count, a, b in zip(counts, *errors.values(), strict=True):
    print(f"{count:3d} rows: spectral {a:6.2f}, shared span {b:.2f} times the floor")

# sphinx_gallery_start_ignore
ratio = dict(zip(counts, errors["spectral"], strict=True))
assert ratio[320] < 1.1
assert ratio[20] == max(ratio.values())
assert all(b <= a for a, b in zip(*errors.values(), strict=True))
# sphinx_gallery_end_ignore
# %%
# With many rows per task the spectral estimator is as good as the joint fit. With about as many
# rows as features, separate least squares has very large errors, and so do the directions that are
# found from it. With still fewer rows the error falls again, because the minimum-norm solution is
# used, but the joint fit remains ahead.
#
# Tasks that leave the span
# -------------------------
#
# A second step lets a task leave the span if its rows require it. The norms of long coefficient
# vectors can be clipped before the decomposition, so that outlier tasks hardly influence it
# (``outliers=`` is the assumed share of these tasks). The tasks are the ones of :ref:`the page
# about penalised ERM <sphx_glr_gallery_plot_penalized.py>`.

sim = ss.simulate(
    n_tasks=60, n_features=20, rank=2, n_samples=60, noise=0.5, outliers=0.1, random_state=1
)
outlier = sim.is_outlier
methods = {
    "shared span": ss.SharedSpanRegressor(rank=2, random_state=0),
    "spectral, step one": ss.SpectralRegressor(rank=2, step_two=False, random_state=0),
    "spectral, both steps": ss.SpectralRegressor(rank=2, random_state=0),
    "the same, outliers=0.1": ss.SpectralRegressor(rank=2, outliers=0.1, random_state=0),
}
bars = {}
for name, method in methods.items():
    method.fit(sim.X, sim.y, task=sim.task)
    error = np.sum((method.coef_ - sim.coef) ** 2, axis=1)
    bars[name] = error[~outlier].mean(), error[outlier].mean()
    print(f"{name:24s} regular tasks {bars[name][0]:.3f}, outlier tasks {bars[name][1]:.3f}")

fig, axes = plt.subplots(1, 2, sharey=True, figsize=(8, 2.6))
for ax, column, title in zip(axes, (0, 1), ("regular tasks", "outlier tasks"), strict=True):
    ax.barh(list(bars)[::-1], [value[column] for value in bars.values()][::-1], color=f"C{column}")
    ax.set(title=title, xlabel="squared error of a task")
plt.show()

# sphinx_gallery_start_ignore
shared_bar, one, both, cut = bars.values()
assert both[1] < one[1] / 5
assert cut[0] < both[0] < shared_bar[0] / 5
# sphinx_gallery_end_ignore
# %%
# The second step corrects the outlier tasks, and clipping the norms protects the regular tasks from
# them.
