"""
AdaptiveSpanRegressor: a real table of patients
===============================================

*42 patients with Parkinson's disease recorded their voice at home for half a year. Who gets worse?*

Each patient has a score of symptoms, the day of the recording, and 16 measures of the voice. One
regression for all would give one answer for all; one regression per patient would be noisy. This
estimator learns from the data how much the patients differ.
"""

import matplotlib.pyplot as plt
import numpy as np

import sharedspan as ss

table = ss.datasets.load_parkinsons().to_frame()
X, y = table.drop(columns="total_updrs"), table["total_updrs"]
model = ss.AdaptiveSpanRegressor(task_column="subject").fit(X, y)

print(ss.diagnose(model, X, y))

# %%
# Patients differ in the effects of the features that ``varying_`` names; each of these effects has
# a variance of its own. ``rank_`` is the number of directions along which several effects vary
# together; these directions explain only a part of the variation between patients, as the diagnosis
# says. Here is the change of the score per month, with 95 % intervals.

print(model.varying_)

day = list(model.coef_names_).index("test_time")
slope = 30 * model.coef_[:, day]
low, high = (30 * bound[:, day] for bound in model.coef_interval())
order = np.argsort(slope)
worse, better = low > 0, high < 0
colour = np.where(worse, "C1", np.where(better, "C2", "C3"))

fig, ax = plt.subplots(figsize=(8, 4))
places = np.arange(len(order))
ax.vlines(places, low[order], high[order], color=colour[order], lw=2)
ax.scatter(places, slope[order], color=colour[order], s=16, zorder=3)
ax.axhline(0, color="black", lw=1)
ax.axhline(30 * model.mean_coef_[day], color="C0", ls="--", label="typical patient")
ax.set_xticks(places, model.tasks_[order], fontsize=6)
ax.set(xlabel="patient", ylabel="points per month", title="Change of the symptom score")
ax.legend()
plt.show()

print(f"clearly worse: {worse.sum()}, clearly better: {better.sum()}, of {len(slope)}")

# sphinx_gallery_start_ignore
assert model.slopes_ == "diagonal"
assert model.rank_ <= 3
assert "test_time" in model.varying_
assert worse.sum() > 20
assert better.sum() > 5
assert abs(model.mean_coef_[day]) < model.slope_std_[day] / 5
# sphinx_gallery_end_ignore
# %%
# The typical patient, the dashed line, hardly changes and is unlike most patients: that is why a
# pooled regression misleads here.
#
# Which features differ most between patients?
# --------------------------------------------
#
# ``slope_std_`` is the standard deviation of a coefficient between patients, without the variation
# along the shared directions. Multiplied by the standard deviation of the feature, it is in points
# of the score, so that features can be compared with each other.

spread = model.slope_std_ * X[model.coef_names_].std().to_numpy()
top = np.argsort(spread)[-6:]
fig, ax = plt.subplots(figsize=(8, 2.6))
ax.barh([model.coef_names_[j] for j in top], spread[top])
ax.set(xlabel="points of the score", title="Spread of the effect between patients")
plt.show()

# sphinx_gallery_start_ignore
assert model.coef_names_[top[-1]] == "test_time"
# sphinx_gallery_end_ignore
# %%
# Time matters most. A prediction has an interval that contains nine of ten new scores:

low, high = model.predict_interval(X[:3], level=0.9)
for mean, lower, upper in zip(model.predict(X[:3]), low, high, strict=True):
    print(f"{mean:.1f}, most likely between {lower:.1f} and {upper:.1f}")
