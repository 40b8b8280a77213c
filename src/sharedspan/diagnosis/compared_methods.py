"""The methods that a comparison knows: which are fitted to a table, and how they are made."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from sharedspan.estimators import ESTIMATORS, estimator_class
from sharedspan.estimators.glm_baselines import MAX_ITER, TOLERANCE, GLMBaseline, IgnoringTasks
from sharedspan.families import (
    Binomial,
    Counts,
    Family,
    Gaussian,
    family_of,
    suggested_family,
)
from sharedspan.inputs.files import nearest

_BASELINES = [name for name, module in ESTIMATORS.items() if module.endswith(".baselines")]
_OTHERS = ("NewTaskRegressor", "AdaptiveSpanClassifier", "SharedSpanClassifier")
# The simplest first. NewTaskRegressor is for tasks that come after a fit, so it is not compared.
COMPARED = (*_BASELINES, *(n for n in ESTIMATORS if n not in (*_BASELINES, *_OTHERS)))
IGNORED = "one model ignoring tasks"  # this and the next two: see estimators/glm_baselines.py
POOLED, SEPARATE = "pooled GLM", "separate GLMs"  # of scikit-learn
FAMILY_MODELS = {  # methods that are an estimator with another family
    f"AdaptiveSpanRegressor(family={name!r})": name
    for name in ("binomial", "poisson", "negative_binomial")
}
COMPARED_FAMILIES = ("gaussian", *FAMILY_MODELS.values())
BASELINES_COMPARED = {  # their names in a verdict
    IGNORED: "ignored",
    "PooledRegressor": "pooled", POOLED: "pooled",
    "PerTaskRegressor": "separate", SEPARATE: "separate",
}  # fmt: skip
DEFAULTS = (
    IGNORED, "PooledRegressor", "PerTaskRegressor", "AdaptiveSpanRegressor", "SharedSpanRegressor"
)  # fmt: skip
DEFAULT_GLMS = (IGNORED, POOLED, SEPARATE)
DEFAULT_CLASSES = (*DEFAULT_GLMS, "AdaptiveSpanClassifier", "SharedSpanClassifier")
SIMPLEST_FIRST = (*BASELINES_COMPARED, *COMPARED, *_OTHERS, *FAMILY_MODELS)
ADAPTIVE = ("AdaptiveSpanRegressor",)


def adaptive_methods(family: Family) -> tuple[str, ...]:
    """The adaptive models of a family, which are preferred among methods that are equally good."""
    if isinstance(family, Gaussian):
        return ADAPTIVE
    model = next(name for name, own in FAMILY_MODELS.items() if own == family.name)
    return ("AdaptiveSpanClassifier", model) if isinstance(family, Binomial) else (model,)


def checked_family(name: str, y: np.ndarray) -> Family:
    """The family of a name, or the one that y looks like; raise if y cannot be of it."""
    if name not in ("auto", *COMPARED_FAMILIES):
        known = ", ".join(map(repr, ("auto", *COMPARED_FAMILIES)))
        raise ValueError(f"family={name!r} is unknown: use one of {known}.")
    family = family_of(suggested_family(y) if name == "auto" else name)
    valid = family.is_valid(y)
    if not valid.all():
        raise ValueError(
            f"family={family.name!r} needs {family.needs}; y has {y[np.argmin(valid)]:g}."
        )
    return family


def default_methods(family: Family, y: np.ndarray) -> tuple[str, ...]:
    """The methods for responses of a family that are compared if nothing is said."""
    if isinstance(family, Gaussian):
        return DEFAULTS
    if isinstance(family, Binomial) and np.isin(y, (0, 1)).all():
        return DEFAULT_CLASSES
    return (*DEFAULT_GLMS, *adaptive_methods(family)[-1:])


def chosen_methods(
    methods: Sequence[str] | str | None, family: Family, y: np.ndarray
) -> tuple[str, ...]:
    """The methods in the order of their fits: the default ones first, the simplest first."""
    defaults = default_methods(family, y)
    if methods is None:
        return defaults
    if isinstance(methods, str) and methods == "all":
        others: Sequence[str] = COMPARED
        if not isinstance(family, Gaussian):
            counts = [n for n, own in FAMILY_MODELS.items() if isinstance(family_of(own), Counts)]
            others = ("AdaptiveSpanRegressor", *(counts if isinstance(family, Counts) else ()))
        return (*defaults, *(name for name in others if name not in defaults))
    names = [methods] if isinstance(methods, str) else list(methods)
    known = list(dict.fromkeys((*SIMPLEST_FIRST, *ESTIMATORS)))
    for name in names:
        if name not in known:
            hint = nearest(str(name), [*known, "all"]) or f" The methods are {', '.join(known)}."
            raise ValueError(f"There is no method {name!r} to compare.{hint}")
    if not names:
        raise ValueError("methods is empty: name at least one, or leave it out for the default.")
    return tuple(sorted(set(names), key=lambda name: (name not in defaults, known.index(name))))


def make_estimator(name: str, seed: int, family: Family) -> Any:
    """The estimator with default parameters, and with this seed if it has one."""
    if name == IGNORED:
        is_normal = isinstance(family, Gaussian)
        separate: Any = estimator_class("PerTaskRegressor")
        return IgnoringTasks(separate() if is_normal else GLMBaseline(family, per_task=True))
    if name in (POOLED, SEPARATE):
        return GLMBaseline(family, per_task=name == SEPARATE)
    if name in FAMILY_MODELS:
        adaptive: Any = estimator_class("AdaptiveSpanRegressor")
        return adaptive(family=FAMILY_MODELS[name], random_state=seed)
    model: Any = estimator_class(name)()
    return model.set_params(random_state=seed) if "random_state" in model.get_params() else model


def has_intervals(name: str) -> bool:
    """Whether a method has prediction intervals."""
    if name not in (*ESTIMATORS, *FAMILY_MODELS):
        return False
    estimator: Any = estimator_class("AdaptiveSpanRegressor" if name in FAMILY_MODELS else name)
    return estimator.has_intervals


def method_in_words(name: str, family: Family) -> str:
    """A method in a sentence: the name of an estimator, or what a baseline without one does."""
    if name not in DEFAULT_GLMS:
        return name
    kind = "logistic" if isinstance(family, Binomial) else "Poisson"
    if isinstance(family, Gaussian):
        kind = "ridge"
    return {
        IGNORED: f"a {kind} regression of all rows, ignoring tasks",
        POOLED: f"a {kind} regression of all rows with an intercept for each task",
        SEPARATE: f"one {kind} regression for each task",
    }[name]


def python_lines(name: str, family: Family, is_coded: bool = False) -> str:
    """Python that fits and keeps a method without a name of its own; empty for estimators.

    It takes the X, y and task of the comparison, and X_new of new rows. ``is_coded`` says that
    columns were not numbers, so that indicators are made of their levels.
    """
    if name not in DEFAULT_GLMS:
        return ""
    if isinstance(family, Gaussian):
        return (
            "model = ss.PerTaskRegressor().fit(X, y, task=np.zeros(len(y)))\n"
            "model.predict(X_new, task=np.zeros(len(X_new)))"
        )
    glm = "PoissonRegressor" if isinstance(family, Counts) else "LogisticRegression"
    n_rows = "sum(task == t)" if name == SEPARATE else "len(y)"
    alpha = f"alpha=1 / {n_rows}, " if isinstance(family, Counts) else ""
    fit = f"{glm}({alpha}tol={TOLERANCE:g}, max_iter={MAX_ITER})"
    predict = "predict" if isinstance(family, Counts) else "predict_proba"
    levels = (
        '(OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number"))'
    )
    scaler = "StandardScaler()"
    if is_coded:
        scaler = f"make_column_transformer({levels}, remainder=StandardScaler())"
    if name == IGNORED:
        code = f"model = make_pipeline({scaler}, {fit}).fit(X, y)\nmodel.{predict}(X_new)"
    elif name == POOLED:
        code = (
            "def with_task(X, task):\n"
            "    X = pd.DataFrame(X).rename(columns=str)\n"
            "    return X.assign(task=np.asarray(task).astype(str))\n"
            f"columns = make_column_transformer({levels}, remainder=StandardScaler())\n"
            f"model = make_pipeline(columns, {fit}).fit(with_task(X, task), y)\n"
            f"model.{predict}(with_task(X_new, task_new))"
        )
        is_coded = True
    else:
        code = (
            f"scaler = {scaler}.fit(X)\n"
            f"models = {{t: {fit}.fit(scaler.transform(X[task == t]), y[task == t]) "
            "for t in np.unique(task)}\n"
            f"models[t].{predict}(scaler.transform(X_new))"
        )
    lines = [f"from sklearn.linear_model import {glm}"]
    if is_coded:
        lines.append("from sklearn.compose import make_column_selector, make_column_transformer")
    if name != SEPARATE:
        lines.append("from sklearn.pipeline import make_pipeline")
    encoder = "OneHotEncoder, " if is_coded else ""
    return "\n".join([*lines, f"from sklearn.preprocessing import {encoder}StandardScaler", code])


def compile_kernels(name: str, family: Family) -> None:
    """Fit a method to a few rows, so that later times do not include compilation."""
    rng = np.random.default_rng(0)
    X, noise = rng.standard_normal((32, 3)), rng.standard_normal(32)
    y = X[:, 0] + noise
    if not isinstance(family, Gaussian):
        y = (y > 0).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(Exception):  # the fit to the table raises and reports it as well
            make_estimator(name, 0, family).fit(X, y, task=np.repeat(np.arange(4), 8))
