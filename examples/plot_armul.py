"""
ARMULRegressor: customers of three kinds
========================================

*Customers seem to come in a few kinds. Can we find the kinds and the customers of each, without
forcing anybody into one?*

ARMUL pulls each task towards a structure: one common vector (``"vanilla"``), a few centres
(``"clustered"``) or a span (``"lowrank"``), with a penalty that is chosen by cross-validation. We
simulate sixty customers of three kinds who differ a little within each kind; two of them belong to
no kind.
"""

import matplotlib.pyplot as plt
import numpy as np

import sharedspan as ss

rng = np.random.default_rng(0)
n_customers, n_features, n_rows = 60, 10, 25
kind = np.arange(n_customers) % 3
coef = rng.standard_normal((3, n_features))[kind]
coef += 0.1 * rng.standard_normal(coef.shape)
loners = [5, 29]
coef[loners] = 2 * rng.standard_normal((2, n_features))

customer = np.repeat(np.arange(n_customers), n_rows)
X = rng.standard_normal((len(customer), n_features))
y = np.sum(X * coef[customer], axis=1) + rng.standard_normal(len(customer))

# %%
model = ss.ARMULRegressor(variant="clustered", n_clusters=3, random_state=0)
model.fit(X, y, task=customer)
centres = (model.representation_ @ model.task_weights_).T
distance = np.linalg.norm(model.coef_ - centres, axis=1)

fig, (left, right) = plt.subplots(1, 2, width_ratios=(3, 2))
for label in range(3):
    members = model.labels_ == label
    left.scatter(model.tasks_[members], distance[members], s=18, label=f"kind {label + 1}")
for loner in loners:
    left.annotate(
        f"customer {loner}", (loner, distance[loner]), (6, -4), textcoords="offset points"
    )
left.set(xlabel="customer", ylabel="distance to the centre of the kind", title="Two do not fit")
left.legend(loc="center right")
path = model.penalty_path_
right.semilogx(path["penalty"], path["loss"], "o-")
right.axvline(model.penalty_, color="C1", ls=":")
right.set(xlabel="penalty", ylabel="squared error on held-out rows", title="Choice of the penalty")
plt.show()

regular = np.setdiff1d(np.arange(n_customers), loners)
pairs = {(int(a), int(b)) for a, b in zip(kind[regular], model.labels_[regular], strict=True)}
print("true kind -> estimated kind:", sorted(pairs))

# sphinx_gallery_start_ignore
assert len(pairs) == 3
assert set(np.argsort(distance)[-2:].tolist()) == set(loners)
assert distance[loners].min() > 5 * np.sort(distance)[-3]
# sphinx_gallery_end_ignore
# %%
# Every regular customer is assigned to the kind they were drawn from. The two loners are assigned
# to a kind, too, but stay far from its centre: their coefficients are close to those of a separate
# regression. On the right, small penalties leave everybody alone, large ones force everybody into a
# centre, and the error on held-out rows is smallest in between.
#
# The structure matters
# ---------------------

methods = {
    "lowrank": ss.ARMULRegressor(variant="lowrank", rank=3, random_state=0),
    "vanilla": ss.ARMULRegressor(variant="vanilla", random_state=0),
    "each customer alone": ss.PerTaskRegressor(),
    "pooled": ss.PooledRegressor(),
}
error = {"clustered": ss.parameter_error(model.coef_, coef) / n_customers}
for name, method in methods.items():
    method.fit(X, y, task=customer)
    error[name] = ss.parameter_error(method.coef_, coef) / n_customers
for name, value in error.items():
    print(f"{name:20s} squared error of a customer's coefficients {value:.2f}")

# sphinx_gallery_start_ignore
values = list(error.values())
assert values == sorted(values)
# sphinx_gallery_end_ignore
# %%
# The right structure helps most. The wrong one, a single centre, costs nothing: the penalty that
# cross-validation chooses is small, and the fit is close to separate regressions.
