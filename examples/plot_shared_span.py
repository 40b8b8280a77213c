"""
SharedSpanRegressor: tasks that share a few directions
======================================================

*A hundred tasks each need a regression on 50 features, and each has 80 rows. Can they help each
other?*

They can if their coefficient vectors lie in a common span of few dimensions. We simulate such
tasks, so that we know the truth, and fit them separately and together.
"""

import matplotlib.pyplot as plt
import numpy as np

import sharedspan as ss

sim = ss.simulate(n_tasks=100, n_features=50, rank=3, n_samples=80, noise=0.5, random_state=0)

model = ss.SharedSpanRegressor(random_state=0).fit(sim.X, sim.y, task=sim.task)
separate = ss.PerTaskRegressor().fit(sim.X, sim.y, task=sim.task)

fig, axes = plt.subplots(1, 2, sharex=True, sharey=True)
for ax, fit, name in zip(axes, (separate, model), ("each task alone", "shared span"), strict=True):
    error = np.sqrt(ss.parameter_error(fit.coef_, sim.coef) / sim.coef.size)
    ax.plot(sim.coef.ravel(), fit.coef_.ravel(), ".", ms=2, alpha=0.4)
    ax.axline((0, 0), slope=1, color="black", lw=1)
    ax.set(title=f"{name}: off by {error:.2f}", xlabel="true coefficient")
axes[0].set_ylabel("estimated coefficient")
plt.show()

# sphinx_gallery_start_ignore
ratio = ss.parameter_error(separate.coef_, sim.coef) / ss.parameter_error(model.coef_, sim.coef)
assert ratio > 10
assert model.rank_ == 3
# sphinx_gallery_end_ignore
# %%
# Each dot is one of the 5,000 coefficients. Alone, a task must find 50 numbers in 80 rows.
# Together, the tasks find the span, and then each has three numbers of its own to find.
#
# How close is that to the best possible? The *floor* is the expected error that the best fit of
# this rank approaches as the number of rows grows.

floor = ss.error_floor(n_samples=80, n_features=50, n_tasks=100, rank=3, noise=0.5)
print(f"separate: {ss.parameter_error(separate.coef_, sim.coef) / floor:5.1f} times the floor")
print(f"together: {ss.parameter_error(model.coef_, sim.coef) / floor:5.1f} times the floor")

# %%
# The rank need not be known
# --------------------------
#
# ``rank="auto"`` fits one rank after another and compares their predictions of held-out rows of
# every task. The bars show standard errors of the difference between the loss of a rank and that of
# the best rank.

fig, (left, right) = plt.subplots(1, 2)
ss.plot_rank_path(model, ax=left)
for fit, name, mark in ((separate, "each task alone", "s"), (model, "shared span", "o")):
    values = np.linalg.svd(fit.coef_, compute_uv=False)[:10]
    right.plot(np.arange(1, 11), values, mark, ms=5, label=name)
right.plot([1, 2, 3], sim.singular_values, "_", ms=16, mew=2, color="black", label="truth")
right.set(title="Singular values of the coefficients", xlabel="direction", ylim=(0, None))
right.legend()
plt.show()

# %%
# The truth has three directions of equal size. The separate fits show them too, but with smaller
# singular values, because their ridge penalty shrinks the coefficients. They also have noise in all
# the other directions, where the singular values of the shared span are zero.
#
# How precise is a coefficient?
# -----------------------------
#
# Intervals include the uncertainty of the span and of the task's own weights. About 95 of 100
# should contain the truth.

low, high = model.coef_interval(level=0.95)
print(f"{np.mean((low < sim.coef) & (sim.coef < high)):.1%} of the intervals hold the truth")
print(f"{model.n_iter_} iterations. {model.message_}")
# sphinx_gallery_start_ignore
values = np.linalg.svd(separate.coef_, compute_uv=False)
assert (values[:3] < 0.9 * sim.singular_values).all()
assert values[9] > 0.5
assert 0.93 < np.mean((low < sim.coef) & (sim.coef < high)) < 0.97
# sphinx_gallery_end_ignore
