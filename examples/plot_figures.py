"""
Figures of a fitted model: what do shops share?
===============================================

*Eighty shops react to price, weather and calendar, each in its own way. Is there a pattern in how
they differ?*

We simulate shops that differ in two ways, and in nothing else: how much their customers hunt for
bargains, and how much they mind the weather. The estimator is told neither, and every figure below
is one call.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import sharedspan as ss

names = ["price", "discount", "voucher", "rain", "wind", "sun", "weekend", "holiday"]
bargain = np.array([-2, 2, 1, 0, 0, 0, 0, 0]) / 3
weather = np.array([0, 0, 0, -2, -1, 2, 0, 0]) / 3

rng = np.random.default_rng(0)
n_shops, n_days = 80, 40
coef = np.outer(2 * rng.standard_normal(n_shops), bargain)
coef += np.outer(rng.standard_normal(n_shops), weather)

shop = np.repeat(np.arange(n_shops), n_days)
table = pd.DataFrame(rng.standard_normal((len(shop), len(names))), columns=names)
units = np.sum(table.to_numpy() * coef[shop], axis=1) + rng.standard_normal(len(shop))

model = ss.SharedSpanRegressor(random_state=0).fit(table, units, task=shop)

# %%
# How many directions are there?
# ------------------------------

fig, (left, right) = plt.subplots(1, 2)
ss.plot_rank_path(model, ax=left)
ss.plot_spectrum(model, ax=right)
plt.show()

# %%
# There are two directions: a third one does not predict held-out days better. The first direction
# is the stronger one.
#
# What are they?
# --------------

fig, axes = plt.subplots(1, 2, sharey=False)
for direction, ax in enumerate(axes):
    ss.plot_loadings(model, ax=ax, direction=direction)
plt.show()

# sphinx_gallery_start_ignore
assert model.rank_ == 2
for direction, truth in enumerate((bargain, weather)):
    assert abs(model.representation_[:, direction] @ truth) > 0.99
# sphinx_gallery_end_ignore
# %%
# The loadings show what they are: the first direction sets price against discount and voucher, the
# second one rain and wind against sun. The intervals of weekend and holiday include zero. (The sign
# of a direction means nothing by itself: the largest loading is made positive.)
#
# Which shops are extreme?
# ------------------------

fig, ax = plt.subplots(figsize=(8, 4.5))
ss.plot_tasks(model, ax=ax, directions=(0, 1))
plt.show()

# %%
# Shops far out along direction 1 are full of bargain hunters, or of people who do not look at
# prices; sales in shops far up or down depend strongly on the weather. The figure names the
# most extreme shops.
#
# Has it converged?
# -----------------

fig, ax = plt.subplots()
ss.plot_convergence(model, ax=ax)
plt.show()
print(model.message_)

# sphinx_gallery_start_ignore
assert model.converged_
# sphinx_gallery_end_ignore
# %%
# ``ss.write_report(model, "shops.html", table, units, task=shop)`` puts these and more on one page.
# Its plots are drawn by the same functions.
