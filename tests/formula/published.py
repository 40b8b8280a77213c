"""Figures of mixed models as they are printed elsewhere, digit by digit, and where.

A figure is read from the values of a fit, in the layout of `reference.py`: R's stored ones and ours
have the same.
"""

from typing import NamedTuple

SOURCES = {
    "MixedModels.jl": "[its tests](https://github.com/JuliaStats/MixedModels.jl/tree/main/test) "
    "pls.jl and pirls.jl. In the row of Contraception with 25 points, the printed value was "
    "computed with 7 quadrature points, R's value and ours with 25",
    "lme4's tests": "[its tests](https://github.com/lme4/lme4/tree/master/tests) REMLdev.R, "
    "testthat/test-lmer.R and glmer-1.R",
    "lme4's paper": "Bates, Mächler, Bolker and Walker (2015), [Fitting linear mixed-effects "
    "models using lme4](https://doi.org/10.18637/jss.v067.i01): summary and `confint` of "
    "sleepstudy. The degrees of freedom and the p-value are not in the paper: lmerTest prints "
    "them for this model",
    "Pinheiro and Bates": "Pinheiro and Bates (2000), Mixed-effects models in S and S-PLUS",
    "Bates": "Bates (2010), lme4: mixed-effects modeling with R",
    "MLwiN's manual": "Rasbash and others, A user's guide to MLwiN, chapter 4",
}


class Figure(NamedTuple):
    """A printed figure of a model; `path` leads to it in the values of the fit."""

    source: str
    model: str
    fit: str
    name: str
    path: tuple
    printed: str

    def of(self, values):
        """The figure in the values of a fit, which may be a product (a covariance)."""
        if self.path[0] == "covariance":
            sd, correlation = (values["variances"][0][key] for key in ("sd", "correlation"))
            _, i, j = self.path
            return sd[i] * sd[j] * correlation[i][j]
        for step in self.path:
            values = values[step]
        return values

    def agrees(self, value, digits=0.52):
        """Whether a value is the printed figure to half of its last digit."""
        mantissa, _, exponent = self.printed.partition("e")
        unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        return abs(value - float(self.printed)) <= digits * unit


def figures(source, model, fit, rows):
    """Figures of one fit: name, path and what is printed, for each."""
    return [Figure(source, model, fit, *row) for row in rows]


def deviances(source, *rows):
    return [
        Figure(source, model, fit, "-2 log L", ("deviance",), printed)
        for model, fit, printed in rows
    ]


def estimate(i, what="estimate"):
    return ("fixed", i, what)


def sd(i, part=0):
    return ("variances", part, "sd", i)


PUBLISHED = [
    *deviances(
        "MixedModels.jl",
        ("sleepstudy", "ml", "1751.9393"),
        ("sleepstudy uncorrelated", "ml", "1752.0033"),
        ("Dyestuff", "ml", "327.3271"),
        ("Dyestuff", "reml", "319.6543"),
        ("Dyestuff2", "ml", "162.8730"),
        ("Pastes", "ml", "247.9945"),
        ("Penicillin", "ml", "332.1883"),
        ("Contraception", "glmmTMB", "2361.5458"),
        ("Contraception", "glmer_quadrature", "2360.876"),
    ),
    Figure("MixedModels.jl", "cbpp", "glmmTMB", "log L", ("log_likelihood",), "-92.02628"),
    *figures(
        "MixedModels.jl", "sleepstudy", "ml",
        rows=[
            ("(Intercept)", estimate(0), "251.40510"),
            ("Days", estimate(1), "10.46729"),
            ("std. error of (Intercept)", estimate(0, "std_error"), "6.6323"),
            ("std. error of Days", estimate(1, "std_error"), "1.5022"),
            ("sd of (Intercept)", sd(0), "23.7807"),
            ("sd of Days", sd(1), "5.7168"),
        ],
    ),
    *figures(
        "MixedModels.jl", "Penicillin", "ml",
        rows=[
            ("sd between plates", sd(0), "0.8456"),
            ("sd between samples", sd(0, 1), "1.7706"),
            ("residual sd", ("residual_sd",), "0.5499"),
        ],
    ),
    *deviances(
        "lme4's tests",
        ("sleepstudy", "reml", "1743.628272"),
        ("Dyestuff", "ml", "327.327060"),
        ("Dyestuff", "reml", "319.654277"),
        ("cbpp", "glmer_quadrature", "100.010031"),
    ),
    *figures(
        "lme4's paper", "sleepstudy", "reml",
        rows=[
            ("REML criterion", ("deviance",), "1743.6"),
            ("(Intercept)", estimate(0), "251.405"),
            ("Days", estimate(1), "10.467"),
            ("std. error of (Intercept)", estimate(0, "std_error"), "6.825"),
            ("std. error of Days", estimate(1, "std_error"), "1.546"),
            ("t value of (Intercept)", estimate(0, "statistic"), "36.838"),
            ("t value of Days", estimate(1, "statistic"), "6.771"),
            ("df of Days", estimate(1, "df"), "17.0"),
            ("p-value of Days", estimate(1, "p_value"), "3.26e-06"),
            ("sd of (Intercept)", sd(0), "24.741"),
            ("sd of Days", sd(1), "5.922"),
            ("their correlation", ("variances", 0, "correlation", 0, 1), "0.07"),
            ("residual sd", ("residual_sd",), "25.592"),
            ("correlation of fixed effects", ("fixed_correlation", 0, 1), "-0.138"),
            *(
                (f"scaled residuals, {name}", ("scaled_residuals", i), printed)
                for i, (name, printed) in enumerate(
                    [("minimum", "-3.9536"), ("1st quartile", "-0.4634"), ("median", "0.0231"),
                     ("3rd quartile", "0.4634"), ("maximum", "5.1793")]
                )
            ),
        ],
    ),
    *figures(
        "lme4's paper", "sleepstudy", "ml",
        rows=[
            (f"95 % interval, {name}, {end} end", ("profile_intervals", i, end), printed)
            for i, name, *ends in [
                (0, "sd of (Intercept)", "14.381", "37.716"),
                (1, "correlation", "-0.482", "0.685"),
                (2, "sd of Days", "3.801", "8.753"),
                (3, "residual sd", "22.898", "28.858"),
                (4, "(Intercept)", "237.681", "265.130"),
                (5, "Days", "7.359", "13.576"),
            ]
            for end, printed in zip(("lower", "upper"), ends, strict=True)
        ],
    ),
    *figures(
        "Pinheiro and Bates", "Orthodont", "reml",
        rows=[
            ("(Intercept)", estimate(0), "16.340625"),
            ("age", estimate(1), "0.784375"),
            ("Sex=Female", estimate(2), "1.032102"),
            ("age:Sex=Female", estimate(3), "-0.304830"),
            ("std. error of age", estimate(1, "std_error"), "0.0860"),
            ("std. error of age:Sex=Female", estimate(3, "std_error"), "0.1347"),
        ],
    ),
    *figures("Bates", "Dyestuff", "reml", rows=[("sd between batches", sd(0), "42.001"),
                                                ("residual sd", ("residual_sd",), "49.510")]),
    *figures("Bates", "Pastes", "reml", rows=[("sd between casks", sd(0), "2.904"),
                                              ("sd between batches", sd(0, 1), "1.287"),
                                              ("residual sd", ("residual_sd",), "0.823")]),
    *figures("Bates", "Penicillin", "reml", rows=[("sd between plates", sd(0), "0.847"),
                                                  ("sd between samples", sd(0, 1), "1.932"),
                                                  ("residual sd", ("residual_sd",), "0.550")]),
    *figures(
        "MLwiN's manual", "Exam", "ml",
        rows=[
            ("(Intercept)", estimate(0), "-0.012"),
            ("standLRT", estimate(1), "0.557"),
            ("std. error of (Intercept)", estimate(0, "std_error"), "0.040"),
            ("std. error of standLRT", estimate(1, "std_error"), "0.020"),
            ("variance of (Intercept)", ("covariance", 0, 0), "0.090"),
            ("covariance", ("covariance", 0, 1), "0.018"),
            ("variance of standLRT", ("covariance", 1, 1), "0.015"),
        ],
    ),
]  # fmt: skip
