"""
NewTaskRegressor: a task that arrives later
===========================================

*A new shop opens. It has ten rows. What do we know about it?*

More than its ten rows can tell, if a hundred earlier shops have shown the span in which their
coefficients lie, and how they are distributed there. Only the new shop's weights in this span then
remain to be learned: three numbers here, instead of 50 coefficients.
"""

import matplotlib.pyplot as plt
import numpy as np

import sharedspan as ss

sim = ss.simulate(n_tasks=140, n_features=50, rank=3, n_samples=80, random_state=0)
known = sim.task < 100
model = ss.SharedSpanRegressor(rank=3, random_state=0)
model.fit(sim.X[known], sim.y[known], task=sim.task[known])

# %%
# ``from_model`` takes the span, the spread of the weights in it and the noise. We give the 40 new
# tasks more and more of their rows.

row = np.tile(np.arange(80), 140)  # the number of each row within its task
counts = [3, 5, 10, 20, 40, 80]
methods = {
    "span and prior": ss.NewTaskRegressor.from_model(model),
    "span, least squares": ss.NewTaskRegressor.from_model(model, method="least_squares"),
    "span, the paper's Algorithm 2": ss.NewTaskRegressor.from_model(model, method="sgd"),
    "alone (ridge)": ss.PerTaskRegressor(),
}
errors = {name: [] for name in methods}
for count in counts:
    few = ~known & (row < count)
    for name, method in methods.items():
        method.fit(sim.X[few], sim.y[few], task=sim.task[few])
        errors[name].append(ss.parameter_error(method.coef_, sim.coef[100:]) / 40)

fig, ax = plt.subplots()
for (name, error), mark in zip(errors.items(), "os^v", strict=True):
    ax.loglog(counts, error, marker=mark, label=name)
ax.set_xticks(counts, counts)
ax.xaxis.minorticks_off()
ax.set(xlabel="rows of the new task", ylabel="squared error of its coefficients")
ax.legend()
plt.show()

# sphinx_gallery_start_ignore
prior, least, descent, alone = errors.values()
assert all(a < min(b, c, d) for a, b, c, d in zip(prior, least, descent, alone, strict=True))
assert prior[2] < alone[-1]
assert least[0] > 1
# sphinx_gallery_end_ignore
# %%
# With ten rows and the span, a new task is estimated better than from eighty rows without the span.
# The prior helps if the number of rows is not much larger than the rank; with more rows it does not
# matter. Algorithm 2 reads each row once and keeps only the current weights; this costs accuracy
# unless there are many rows.

for count, *values in zip(counts, *errors.values(), strict=True):
    print(f"{count:3d} rows: " + "  ".join(f"{value:.3f}" for value in values))

# %%
# Rows that arrive one by one
# ---------------------------
#
# ``partial_fit`` gives the same answer as a fit to all rows so far, and the standard errors fall
# as rows arrive.

first = np.flatnonzero(sim.task == 100)
new = ss.NewTaskRegressor.from_model(model)
for i in first[:20]:
    new.partial_fit(sim.X[[i]], sim.y[[i]], task=[100])
    if row[i] in (0, 4, 19):
        print(f"after {row[i] + 1:2d} rows: mean standard error {new.coef_std_.mean():.3f}")

at_once = ss.NewTaskRegressor.from_model(model)
at_once.fit(sim.X[first[:20]], sim.y[first[:20]], task=sim.task[first[:20]])
print(
    "largest difference from one fit to all rows:", f"{np.abs(new.coef_ - at_once.coef_).max():.0e}"
)
# sphinx_gallery_start_ignore
assert np.abs(new.coef_ - at_once.coef_).max() < 1e-10
# sphinx_gallery_end_ignore
