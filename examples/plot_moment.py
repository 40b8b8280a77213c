"""
MomentRegressor: the span from averages
=======================================

*Can the span be estimated from averages over rows alone, without iterations?*

The average of x y over the rows of a task has an expected value that points along the task's
coefficients. The method of moments puts such averages together over tasks and takes their leading
directions; there is nothing to iterate and nothing to tune. It assumes features that are about
Gaussian and uncorrelated.
"""

import matplotlib.pyplot as plt

import sharedspan as ss


def angle(method, sim):
    """Sine of the largest angle between the estimated span and the true one."""
    method.fit(sim.X, sim.y, task=sim.task)
    return ss.subspace_distance(method.representation_, sim.representation)


common = {"rank": 2, "random_state": 0}
methods = {
    'moments, "tripuraneni"': ss.MomentRegressor(variant="tripuraneni", **common),
    'moments, "niu"': ss.MomentRegressor(variant="niu", **common),
    'moments, "duchi"': ss.MomentRegressor(variant="duchi", **common),
    "least squares (shared span)": ss.SharedSpanRegressor(**common),
}
counts = [5, 10, 20, 40, 80, 160]
noises = [0.01, 0.1, 0.3, 1.0]

fig, (left, right) = plt.subplots(1, 2, sharey=True)
by_rows, by_noise = {}, {}
for (name, method), mark in zip(methods.items(), "v^so", strict=True):
    by_rows[name] = [
        angle(method, ss.simulate(n_tasks=400, n_features=20, rank=2, n_samples=n, random_state=0))
        for n in counts
    ]
    by_noise[name] = [
        angle(method, ss.simulate(n_tasks=100, n_features=20, rank=2, noise=s, random_state=0))
        for s in noises
    ]
    left.loglog(counts, by_rows[name], marker=mark, label=name)
    right.loglog(noises, by_noise[name], marker=mark)
left.set_xticks(counts, counts)
left.minorticks_off()
left.set(xlabel="rows per task (400 tasks)", ylabel="sine of the angle to the true span")
right.set(xlabel="noise (100 tasks of 100 rows)")
fig.legend(loc="outside lower center", ncols=2)
plt.show()

for name, values in by_rows.items():
    print(f"{name:28s}" + "  ".join(f"{value:.3f}" for value in values))

# sphinx_gallery_start_ignore
trip, niu, duchi, least = by_rows.values()
assert all(q < min(a, b, c) for a, b, c, q in zip(trip, niu, duchi, least, strict=True))
assert all(c <= 1.001 * b for b, c in zip(niu, duchi, strict=True))
assert by_noise['moments, "duchi"'][0] > 0.5 * by_noise['moments, "duchi"'][-1]
assert (
    by_noise["least squares (shared span)"][0] < 0.02 * by_noise["least squares (shared span)"][-1]
)
# sphinx_gallery_end_ignore
# %%
# On the left the angle falls with the number of rows for all methods; "duchi", which uses all pairs
# of a task's rows, is never worse than "niu", which splits them once into two halves. The right
# panel shows the disadvantage of moments: as the noise vanishes, least squares finds the span
# exactly and the moment estimators do not, because the features themselves add noise to an average
# of x y.
#
# Use ``MomentRegressor`` for comparison: the span of ``SharedSpanRegressor`` is closer to the true
# one at every number of rows in the figure.
