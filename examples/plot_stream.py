"""
Rows that arrive over time, and sites that must not share them
==============================================================

*New rows arrive every day. Three hospitals are not allowed to pool their patients' rows. Can one
model still be fitted to all rows?*

A fit needs only sufficient statistics of each task, not the rows. These statistics can be added up:
over days (``partial_fit``) and over sites (``merge``). The result is the fit to all rows, not an
approximation of it.
"""

import matplotlib.pyplot as plt
import numpy as np

import sharedspan as ss

sim = ss.simulate(n_tasks=60, n_features=20, rank=2, n_samples=120, random_state=0)
days = np.array_split(np.random.default_rng(0).permutation(len(sim.y)), 20)

model = ss.SharedSpanRegressor(rank=2, random_state=0)
passes, errors = [], []
for rows in days:
    model.partial_fit(sim.X[rows], sim.y[rows], task=sim.task[rows])
    passes.append(model.n_iter_)
    errors.append(ss.parameter_error(model.coef_, sim.coef) / 60)

at_once = ss.SharedSpanRegressor(rank=2, random_state=0)
at_once.fit(sim.X, sim.y, task=sim.task)
print(
    "largest difference from one fit to all rows:",
    f"{np.abs(model.coef_ - at_once.coef_).max():.0e}",
)

fig, (left, right) = plt.subplots(1, 2)
left.semilogy(range(1, 21), errors, "o-")
left.set(xlabel="day", ylabel="squared error of a task", title="The fit gets better")
right.bar(range(1, 21), passes)
right.set(xlabel="day", ylabel="iterations", title="and takes a few iterations a day")
plt.show()

# sphinx_gallery_start_ignore
assert np.abs(model.coef_ - at_once.coef_).max() < 1e-6
assert errors[-1] < errors[0] / 10
assert max(passes[10:]) <= 10
# sphinx_gallery_end_ignore
# %%
# Every fit starts from the result of the last one. With ``forgetting=0.99`` earlier days would lose
# weight.
#
# Three sites
# -----------
#
# Each site fits its own rows and sends its model, which holds statistics and no rows.

sites = [
    ss.SharedSpanRegressor(rank=2, random_state=0).fit(
        sim.X[site::3], sim.y[site::3], task=sim.task[site::3]
    )
    for site in range(3)
]
for name, site in zip("ABC", sites, strict=True):
    print(f"site {name} alone: {ss.parameter_error(site.coef_, sim.coef) / 60:.4f}")

joint = sites[0].merge(*sites[1:])
print(f"merged:       {ss.parameter_error(joint.coef_, sim.coef) / 60:.4f}")
print(
    "largest difference from one fit to all rows:",
    f"{np.abs(joint.coef_ - at_once.coef_).max():.0e}",
)
# sphinx_gallery_start_ignore
assert np.abs(joint.coef_ - at_once.coef_).max() < 1e-6
# sphinx_gallery_end_ignore
# %%
# See :doc:`the page about large tables </scaling>`.
