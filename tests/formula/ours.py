"""Our fits of the models of `reference.py`, and their values in the layout of R's."""

import numpy as np
from reference import prediction_tables, reference, table
from scipy import stats

import sharedspan as ss

FAMILIES = {"binomial": "binomial", "poisson": "poisson", "nbinom2": "negative_binomial"}
REML = {"reml": True, "ml": False, "glmmTMB": False, "glmmTMB_reml": True}
QUADRATURE = "glmer_quadrature"


def fitted(name, fit):
    about = reference(name)
    rows = prediction_tables(name)[0] if about.get("held_out") else table(name)
    family = FAMILIES.get(about.get("family"), "gaussian")
    options = {"approximation": "quadrature"} if fit == QUADRATURE else {}
    return ss.mixed(about["formula"], rows, family=family, reml=REML.get(fit, False), **options)


def plain(name):
    """The name of a coefficient without the signs that we and R write differently."""
    return name.replace("factor(", "").replace(")", "").replace("=", "").replace("(", "")


def our_group(group):
    """Our name of R's group: "batch/cask" for "cask:batch", "Subject" for "Subject.1"."""
    return "/".join(reversed(group.split(".")[0].split(":")))


def values_of(model, name, fit):
    """The values of our fit that R's have, too: see `reference.py`."""
    known, summary = reference(name)[fit], model.summary()
    log_likelihood = model.log_likelihood_ - saturated(name, fit)
    values = {
        "log_likelihood": log_likelihood,
        "deviance": -2 * log_likelihood,
        **fixed_of(summary.fixed, known),
        "variances": [variance_of(summary.variances, entry) for entry in known["variances"]],
        "groups": [effects_of(model, group, known) for group in known["groups"]],
    }
    if "dispersion" in known:
        values["dispersion"] = model.dispersion_
    if fit in ("reml", "ml"):
        rows = prediction_tables(name)[0] if "predictions" in known else table(name)
        values["residual_sd"] = summary.sigma.value
        values["scaled_residuals"] = summary.residual_quantiles
        values["fitted"] = model.predict(rows.iloc[:6])
    if "predictions" in known:
        values["predictions"] = model.predict(prediction_tables(name)[1])
    if fit == "ml" and "profile_intervals" in reference(name):
        values["profile_intervals"] = intervals_of(model, reference(name)["profile_intervals"])
    return values


def saturated(name, fit):
    """The log likelihood that glmer leaves out of that of its quadrature."""
    if fit != QUADRATURE or name != "cbpp":
        return 0.0
    rows = table(name)
    shares = rows["incidence"] / rows["size"]
    return stats.binom.logpmf(rows["incidence"], rows["size"], shares).sum()


def fixed_of(fixed, known):
    """Fixed effects in R's order, and their correlations."""
    names = [plain(row["name"]) for row in known["fixed"]]
    ours = [plain(name) for name in fixed.names]
    same = sorted(names) == sorted(ours)
    order = [ours.index(name) for name in names] if same else list(range(len(names)))
    columns = {
        "estimate": fixed.estimate, "std_error": fixed.std_error, "statistic": fixed.statistic,
        "p_value": fixed.p_value, "df": fixed.degrees,
    }  # fmt: skip
    rows = [
        {"name": fixed.names[i]} | {key: v[i] for key, v in columns.items() if v is not None}
        for i in order
    ]
    correlation = np.eye(1) if fixed.correlation is None else fixed.correlation
    return {"fixed": rows, "fixed_correlation": correlation[np.ix_(order, order)]}


def variance_of(entries, wanted):
    """Standard deviations and correlations of one of R's groups of effects."""
    group, names = wanted["group"], [plain(name) for name in wanted["names"]]
    for entry in entries:
        ours = [plain(name) for name in entry.names]
        if entry.group in (our_group(group), group.replace(":", "/")) and set(names) <= set(ours):
            order = [ours.index(name) for name in names]
            full = np.eye(len(ours)) if entry.correlation is None else entry.correlation
            return {"sd": entry.std[order], "correlation": full[np.ix_(order, order)]}
    raise LookupError(f"{group} is not among the groups of the model.")


def effects_of(model, wanted, known):
    """Conditional modes and standard errors of the first levels of one of R's groups."""
    largest = max(known["groups"], key=lambda group: group["n_levels"])
    label = our_group(wanted["group"])
    frame = model.task_effects(None if wanted is largest else label)
    frame.index = frame.index.map(str)
    levels = ["/".join(reversed(level.split(":"))) for level in wanted["levels"]]
    if not set(levels) <= set(frame.index):
        levels = [level.replace(":", "/") for level in wanted["levels"]]
    shown, width = frame.loc[levels].to_numpy(), len(wanted["names"])
    return {"values": shown[:, 0 : 2 * width : 2], "std_errors": shown[:, 1 : 2 * width : 2]}


def intervals_of(model, wanted):
    """Profile intervals in R's order."""
    ours = {}
    for row in ss.variance_intervals(model).to_dict("records"):
        kind, group, effect = row["kind"], row["group"], row["effect"]
        effect = "(Intercept)" if effect == group else effect  # of crossed groups
        names = {"std": f"sd_{effect}|{group}", "correlation": f"cor|{group}", "residual": "sigma"}
        ours[names.get(kind, effect)] = {"lower": row["low"], "upper": row["high"]}
    return [ours[our_interval(row["name"])] for row in wanted]


def our_interval(name):
    """Our name of a parameter of R's: "sd_x|a/b" for "sd_x|b:a", "cor|g" for "cor_x.y|g"."""
    parameter, bar, group = name.partition("|")
    parameter = "cor" if parameter.startswith("cor_") else parameter
    return parameter + bar + our_group(group)
