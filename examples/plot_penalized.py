"""
PenalizedERMRegressor: a few tasks that do not belong
=====================================================

*Most tasks share a span. Some do not, and we do not know which. What do they do to the others?*

Least squares is influenced by every task, and most by the ones with large residuals. In this
example a tenth of the tasks are outlier tasks: they have large coefficients that are unrelated to
the span of the others.
"""

import matplotlib.pyplot as plt
import numpy as np

import sharedspan as ss

sim = ss.simulate(
    n_tasks=60, n_features=20, rank=2, n_samples=60, noise=0.5, outliers=0.1, random_state=1
)
outlier = sim.is_outlier

methods = {
    "shared span": ss.SharedSpanRegressor(rank=2, random_state=0),
    "penalised (pERM)": ss.PenalizedERMRegressor(rank=2, random_state=0),
    "each task alone": ss.PerTaskRegressor(),
}
errors = {}
for name, method in methods.items():
    method.fit(sim.X, sim.y, task=sim.task)
    errors[name] = np.sum((method.coef_ - sim.coef) ** 2, axis=1)
    print(f"{name:16s}  regular tasks {errors[name][~outlier].mean():.3f}"
          f"  outlier tasks {errors[name][outlier].mean():.3f}")  # fmt: skip

without = ~outlier[sim.task]
clean = ss.SharedSpanRegressor(rank=2, random_state=0)
clean.fit(sim.X[without], sim.y[without], task=sim.task[without])
best = ss.parameter_error(clean.coef_, sim.coef[~outlier]) / np.sum(~outlier)
print(f"shared span, without the outlier tasks: {best:.3f}")

# %%
# The shared span fails twice: it cannot follow the outlier tasks, and they rotate it, so that the
# regular tasks suffer. If each task has its own span, with a bounded penalty on its distance from
# the common span, the regular tasks are estimated as well as without the outlier tasks.

fig, ax = plt.subplots()
for i, error in enumerate(errors.values()):
    shift = np.random.default_rng(0).uniform(-0.25, 0.25, len(error))
    x, labels = i + shift, (None, None) if i else ("regular", "outlier")
    ax.scatter(x[~outlier], error[~outlier], s=14, color="C0", label=labels[0])
    ax.scatter(x[outlier], error[outlier], s=30, color="C1", marker="^", label=labels[1])
ax.set_yscale("log")
ax.set_xticks(range(len(errors)), list(errors))
ax.set(ylabel="squared error of a task")
ax.legend()
plt.show()

# %%
# Which tasks are outliers?
# -------------------------
#
# The outlier tasks are those whose coefficients have a large component outside the common span.

model = methods["penalised (pERM)"]
inside = (model.representation_ @ model.task_weights_).T
off = np.linalg.norm(model.coef_ - inside, axis=1)
fig, ax = plt.subplots(figsize=(8, 3))
ax.stem(model.tasks_[~outlier], off[~outlier], linefmt="C0-", markerfmt="C0o", basefmt=" ")
ax.stem(model.tasks_[outlier], off[outlier], linefmt="C1-", markerfmt="C1^", basefmt=" ")
ax.set(xlabel="task", ylabel="length off the span", title="Six tasks stand out")
plt.show()

angle = ss.subspace_distance(model.representation_, sim.representation)
turned = ss.subspace_distance(methods["shared span"].representation_, sim.representation)
print(f"sine of the angle to the true span: {angle:.2f}, {turned:.2f} for the shared span")

# sphinx_gallery_start_ignore
shared, penalised, alone = errors.values()
assert penalised[~outlier].mean() < shared[~outlier].mean() / 5
assert penalised[outlier].mean() < shared[outlier].mean() / 5
assert penalised[~outlier].mean() < alone[~outlier].mean() / 5
assert off[outlier].min() > 10 * off[~outlier].max()
assert penalised[~outlier].mean() < 1.1 * best
assert outlier.sum() == 6
assert turned > 5 * angle
# sphinx_gallery_end_ignore
# %%
# ``AdaptiveSpanRegressor`` estimates for each task the probability that it is an outlier, and
# ``ARMULRegressor`` penalises the distance from the span in another way: see :ref:`its page
# <sphx_glr_gallery_plot_armul.py>`.
