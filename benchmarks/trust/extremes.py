"""Extremes.

Tables with values near the limits of double precision are fitted by every estimator, solver and
family to which they apply. A case may end in the right answer to the stated accuracy, in a warning,
or in an error that names the reason. A wrong answer without a warning, and an error or a warning
raised inside NumPy or SciPy, are failures. A result gives the largest error of the right answers,
in the units that the check names.
"""

import traceback
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import sharedspan as ss
from benchmarks.trust.page import Line

PACKAGE = str(Path(ss.__file__).parent)
FOREIGN = ("numpy", "scipy", "sklearn", "numba")


class Table(NamedTuple):
    """Rows, and the unit of the responses."""

    X: Any
    y: Any
    task: Any
    unit: float = 1.0
    weight: Any = None


class Outcome(NamedTuple):
    """How a case ended: "right", "warned", "refused" or "wrong"; and the error, or the words."""

    ending: str
    error: float
    words: str


def outcome(measure, tolerance):
    """The outcome of a function that fits and returns the error of its result."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            error = float(measure())
        except Exception as problem:
            return _of_exception(problem)
    foreign = [w for w in caught if issubclass(w.category, RuntimeWarning)]
    if foreign:
        where = f"{Path(foreign[0].filename).name}:{foreign[0].lineno}"
        return Outcome("wrong", error, f"{foreign[0].message} ({where})")
    if error <= tolerance:
        return Outcome("right", error, "")
    if caught:
        return Outcome("warned", error, str(caught[0].message))
    return Outcome("wrong", error, f"an error of {error:.2g}, without a warning")


def _of_exception(problem):
    """An error is a refusal if this library raised it with a sentence, as one of its kinds."""
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    words = f"{type(problem).__name__}: {problem}"
    ours = frame.filename.startswith(PACKAGE) and str(problem).rstrip().endswith((".", ")"))
    if ours and isinstance(problem, (ValueError, TypeError)):
        return Outcome("refused", np.nan, words)
    return Outcome("wrong", np.nan, f"{words} ({Path(frame.filename).name}:{frame.lineno})")


# ---- tables --------------------------------------------------------------------------------------


def table(rng, T=8, n=25, d=4, rank=2, noise=0.3, intercept=1.0):
    """Rows of T tasks whose coefficients have rank ``rank``."""
    X, task = rng.standard_normal((T * n, d)), np.repeat(np.arange(T), n)
    V = rng.standard_normal((T, rank)) @ rng.standard_normal((rank, d))
    y = intercept + np.einsum("ij,ij->i", X, V[task]) + noise * rng.standard_normal(T * n)
    return Table(X, y, task)


def scaled(rows, of_x=1.0, of_y=1.0):
    return rows._replace(X=rows.X * of_x, y=rows.y * of_y, unit=of_y)


def with_condition(rows, rng, condition):
    """The same rows with features mixed by a matrix of this condition number."""
    d = rows.X.shape[1]
    left, right = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    return rows._replace(X=rows.X @ (left * np.geomspace(1.0, 1 / condition, d)) @ right)


# ---- models --------------------------------------------------------------------------------------


def new_tasks(**options):
    return ss.NewTaskRegressor(method="least_squares", **options)


RANKED = {
    "SharedSpanRegressor": ss.SharedSpanRegressor,
    "CurriculumRegressor": ss.CurriculumRegressor,
    "MomentRegressor": ss.MomentRegressor,
    "SpectralRegressor": ss.SpectralRegressor,
    "ARMULRegressor": ss.ARMULRegressor,
    "PenalizedERMRegressor": ss.PenalizedERMRegressor,
}
REGRESSORS = {
    "AdaptiveSpanRegressor": ss.AdaptiveSpanRegressor,
    "AdaptiveSpanRegressor, noise per task": partial(ss.AdaptiveSpanRegressor, noise="per_task"),
    "AdaptiveSpanRegressor, student_t": partial(ss.AdaptiveSpanRegressor, family="student_t"),
    "AdaptiveSpanRegressor, huber": partial(ss.AdaptiveSpanRegressor, family="huber"),
    **{
        name: partial(make, 2, random_state=0)
        for name, make in RANKED.items()
        if "Spec" not in name
    },
    "SpectralRegressor": partial(ss.SpectralRegressor, 2),
    "SharedSpanRegressor, rank chosen": partial(ss.SharedSpanRegressor, random_state=0),
    "SharedSpanRegressor, noise per task": partial(
        ss.SharedSpanRegressor, 2, noise="per_task", random_state=0
    ),
    "SharedSpanRegressor, without whitening": partial(
        ss.SharedSpanRegressor, 2, whiten=False, random_state=0
    ),
    "NewTaskRegressor": new_tasks,
    "PooledRegressor": ss.PooledRegressor,
    "PerTaskRegressor": ss.PerTaskRegressor,
}
SOLVERS = {
    f"solver={name}": partial(ss.SharedSpanRegressor, 2, solver=name, random_state=0, tol=1e-9)
    for name in ss.SOLVERS
}
COUNTS = {
    f"AdaptiveSpanRegressor, {family}": partial(ss.AdaptiveSpanRegressor, family=family)
    for family in ("binomial", "poisson", "negative_binomial")
}
CLASSIFIERS = {
    "AdaptiveSpanClassifier": ss.AdaptiveSpanClassifier,
    "SharedSpanClassifier": partial(ss.SharedSpanClassifier, 2),
}


def predicted(make, rows):
    options = {} if rows.weight is None else {"sample_weight": rows.weight}
    model = make().fit(rows.X, rows.y, rows.task, **options)
    if not np.isfinite(model.coef_).all():
        return np.full(len(rows.y), np.nan)
    return model.predict(rows.X, rows.task)


def gap(make, rows, easy):
    """The largest difference of predictions from those of easy rows, in deviations of y."""
    return np.abs(predicted(make, rows) / rows.unit - easy).max() / np.std(easy)


def share_left(make, rows):
    """The mean square of residuals, as a share of that of the best constant."""
    weight = np.ones(len(rows.y)) if rows.weight is None else rows.weight
    level = np.average(rows.y, weights=weight)
    errors = np.average((rows.y - predicted(make, rows)) ** 2, weights=weight)
    return errors / np.average((rows.y - level) ** 2, weights=weight)


def quietly(function, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


# ---- the cases: a generator of (name, measure, tolerance) each -----------------------------------

EXPONENTS = (-150, -75, -30, -6, 6, 30, 75, 150)
BEYOND = (1e-315, 1e-308, 1e-200, 1e200, 1e307)  # squares of these have no number
SINGULAR = ("nsgd", "Moment", "Pooled", "student_t", "huber")  # no interpolation, by what they are


def equivariant(name, make):
    """A model whose fit does not depend on the unit of y beyond rounding, or None.

    Folds are drawn by the rows' values, so ARMUL gets its penalty here; pERM adds an angle to a
    sum of squares, as published, and so depends on the unit of y.
    """
    if name == "ARMULRegressor":
        return partial(make, penalty=1.0)
    return None if name == "PenalizedERMRegressor" else make


def scales(rng, share):
    """Every scale of X and of y; by a share of the models."""
    rows = table(rng)
    for name, make in _some({**REGRESSORS, **SOLVERS}, rng, share).items():
        of_y = equivariant(name, make)
        fixed = make if of_y is None else of_y
        easy = quietly(predicted, fixed, rows)
        for exponent in EXPONENTS:
            X_scaled = scaled(rows, of_x=10.0**exponent)
            yield f"{name}, X 1e{exponent}", partial(gap, fixed, X_scaled, easy), 1e-5
            if of_y is not None:
                y_scaled = scaled(rows, of_y=10.0**exponent)
                yield f"{name}, y 1e{exponent}", partial(gap, fixed, y_scaled, easy), 1e-5


def beyond(rng, share):
    """Responses so small or large that their squares have no number."""
    rows = table(rng)
    for name, make in _some({**REGRESSORS, **SOLVERS}, rng, share).items():
        if (model := equivariant(name, make)) is not None:
            easy = quietly(predicted, model, rows)
            for size in BEYOND:
                measure = partial(gap, model, scaled(rows, of_y=size), easy)
                yield f"{name}, y {size:g}", measure, 1e-5


WHITENED = (
    "SharedSpanRegressor", "CurriculumRegressor", "MomentRegressor", "SpectralRegressor",
    "SharedSpanRegressor, rank chosen", "SharedSpanRegressor, noise per task",
    "SharedSpanRegressor, without whitening", "NewTaskRegressor",
)  # fmt: skip


def conditions(rng, share):
    """Features mixed by matrices of growing condition numbers."""
    rows = table(rng)
    models = {name: REGRESSORS[name] for name in WHITENED}
    models |= {name: make for name, make in SOLVERS.items() if name != "solver=nsgd"}
    for name, make in _some(models, rng, share).items():
        easy = quietly(predicted, make, rows)
        for exponent in (2, 3, 4, 5, 6, 7, 8, 10, 12):
            mixed = with_condition(rows, rng, 10.0**exponent)
            # The slow path without whitening stops at its tolerance before the last digits.
            tolerance = 1e-2 if "without" in name else 1e-4
            yield f"{name}, condition 1e{exponent}", partial(gap, make, mixed, easy), tolerance


def without_noise(rng, share):
    """No noise, with distinct and with equal singular values, and a rank above the true one."""
    d, T = 4, 8
    rows = table(rng, T=T, d=d, noise=0.0)
    Q, P = (np.linalg.qr(rng.standard_normal((size, 2)))[0] for size in (T, d))
    equal = rows._replace(y=1 + np.einsum("ij,ij->i", rows.X, (Q @ P.T)[rows.task]))
    for name, make in _some({**REGRESSORS, **SOLVERS}, rng, share).items():
        if any(word in name for word in SINGULAR):
            continue
        tolerance = 1e-3
        yield f"{name}, without noise", partial(gap, make, rows, rows.y), tolerance
        yield f"{name}, equal singular values", partial(gap, make, equal, equal.y), tolerance
        if name in RANKED or name.startswith("solver="):
            higher = partial(_of_rank, make, 4)
            yield f"{name}, rank 4 of 2", partial(gap, higher, rows, rows.y), tolerance


def _of_rank(make, rank):
    return make().set_params(rank=rank)


def shapes(rng, share):
    """One row a task, one task, more columns than rows, weights from 1e-12 to 1e12."""
    rows = table(rng)
    of_rows = rows._replace(weight=10.0 ** rng.uniform(-12, 12, len(rows.y)))
    of_tasks = rows._replace(weight=10.0 ** np.linspace(-12, 12, 8)[rows.task])
    one = Table(rng.standard_normal((12, 4)), rng.standard_normal(12), np.arange(12))
    cases = {
        "one row a task": one,
        "more columns than rows": table(rng, T=3, n=4, d=30),
        "weights 1e-12 to 1e12 of rows": of_rows,
        "weights 1e-12 to 1e12 of tasks": of_tasks,
        "one task": table(rng, T=1, n=40),
    }
    slow = ("solver=als", "solver=altmin_gd", "solver=scaled_gd_anderson")  # by extreme weights
    if share >= 1:
        slow = ()
    models = {name: m for name, m in {**REGRESSORS, **SOLVERS}.items() if name not in slow}
    for name, make in _some(models, rng, share).items():
        for case, rows in cases.items():
            given = getattr(make, "args", ()) and "New" not in name
            chosen = make
            if case == "one task" and given:
                chosen = partial(_of_rank, make, 1)
            # The level of a robust fit, and of tasks weighted by their noise, is not the mean.
            robust = any(word in name for word in ("student", "huber", "noise per task"))
            yield f"{name}, {case}", partial(share_left, chosen, rows), 1.5 if robust else 1 + 1e-6


def single_precision(rng, share):
    """X and y in float32, against the same numbers in double precision; and dtype='float32'."""
    rows = table(rng)
    single = rows._replace(X=rows.X.astype(np.float32), y=rows.y.astype(np.float32))
    double = single._replace(X=single.X.astype(float), y=single.y.astype(float))
    for name, make in _some({**REGRESSORS, **SOLVERS}, rng, share).items():
        tolerance = 1e-5
        model = equivariant(name, make) or make
        easy = quietly(predicted, model, double)
        yield f"{name}, float32", partial(gap, model, single, easy), tolerance
        if name.startswith("SharedSpan"):
            halved = partial(make, dtype="float32")
            yield f"{name}, dtype='float32'", partial(gap, halved, single, easy), 1e-3


def separation(rng, share):
    """Classes that a plane separates in every task, at several sizes of X; counts of zero."""
    X, task = rng.standard_normal((160, 3)), np.repeat(np.arange(8), 20)
    V = rng.standard_normal(3) + 0.3 * rng.standard_normal((8, 3))
    y = (np.einsum("ij,ij->i", X, V[task]) > 0).astype(int)
    for name, make in CLASSIFIERS.items():
        for size in (1e-100, 1e-6, 1.0, 1e6, 1e100):
            rows = Table(X * size, y, task)
            yield f"{name}, separation, X {size:g}", partial(_misclassified, make, rows), 0.15
        ones = Table(X, np.where(task == 0, y, 1), task)
        yield f"{name}, one class in 7 of 8 tasks", partial(_misclassified, make, ones), 0.15
    for name, make in COUNTS.items():
        rows = Table(X, np.where(task < 4, 0, y), task)
        yield f"{name}, tasks of zeros", partial(_mean_error, make, rows), 0.05


def _misclassified(make, rows):
    model = make().fit(rows.X, rows.y, rows.task)
    chances = model.predict_proba(rows.X, rows.task)
    if not (np.isfinite(chances).all() and np.allclose(chances.sum(axis=1), 1)):
        return np.nan
    return np.mean(model.predict(rows.X, rows.task) != rows.y)


def _mean_error(make, rows):
    return abs(predicted(make, rows).mean() - rows.y.mean())


def sizes(rng, share):
    """Very many tasks with d = 3, and d = 5,000 with T = 3; smaller with fewer cases."""
    T, d = (10**6, 5000) if share >= 1 else (2000, 200)
    X = rng.standard_normal((4 * T, 3))
    V = rng.standard_normal((T, 1)) * [1.0, -2.0, 0.5]
    task = np.repeat(np.arange(T), 4)
    many = Table(X, np.einsum("ij,ij->i", X, V[task]) + 0.01 * rng.standard_normal(4 * T), task)
    models = {
        "PerTaskRegressor": ss.PerTaskRegressor,
        "PooledRegressor": ss.PooledRegressor,
        "SharedSpanRegressor": partial(ss.SharedSpanRegressor, 1, random_state=0),
        "AdaptiveSpanRegressor": ss.AdaptiveSpanRegressor,
    }
    all_features, fewer = (table(rng, T=3, n=60, d=number) for number in (d, min(d, 1000)))
    for name, make in models.items():
        # Each step of the adaptive estimator takes time cubic in the features.
        wide = fewer if name == "AdaptiveSpanRegressor" else all_features
        bound = 1.01 if name == "PooledRegressor" else 0.2
        yield f"{name}, {T} tasks with d = 3", partial(share_left, make, many), bound
        yield (
            f"{name}, d = {wide.X.shape[1]} with 3 tasks",
            partial(share_left, make, wide),
            1 + 1e-6,
        )


def _some(models, rng, share):
    """A share of the models, at least three, drawn at random; all of them from a share of 1 on."""
    names = list(models)
    count = len(names) if share >= 1 else min(max(3, round(share * len(names))), len(names))
    chosen = {names[i] for i in rng.choice(len(names), count, replace=False)}
    return {name: models[name] for name in names if name in chosen}


KINDS = {
    "X or y multiplied by 1e-150 to 1e150: predictions, scaled back, are those of the unscaled "
    "table, to 1e-5 standard deviations of y": scales,
    "y multiplied by 1e-315 to 1e307, so that its squares overflow or underflow: predictions, "
    "scaled back, are those of the unscaled table, to 1e-5 standard deviations of y": beyond,
    "Features mixed by matrices with condition numbers from 1e2 to 1e12: predictions are those of "
    "the features before mixing, to 1e-4 standard deviations of y (1e-2 for `whiten=False`)": (
        conditions
    ),
    "No noise, equal singular values, or a rank above the true one: predictions are the responses, "
    "to 1e-3 standard deviations of y": without_noise,
    "One row per task, one task, more columns than rows, or weights from 1e-12 to 1e12: the mean "
    "squared residual, as a share of that of the best constant, is at most 1 (1.5 for robust fits "
    "and for noise per task)": shapes,
    "X and y in float32: predictions are those of the same numbers in double precision, to 1e-5 "
    'standard deviations of y (1e-3 for `dtype="float32"`)': single_precision,
    "Classes that are separated in every task, or of which one is missing in most tasks: "
    "probabilities are finite, and the share of misclassified rows is at most 0.15; tasks whose "
    "counts are all zero: the mean prediction is right to 0.05": separation,
    "10^6 tasks with 3 features, and 3 tasks with 5,000 features (1,000 for AdaptiveSpanRegressor; "
    "2,000 tasks and 200 features for `--cases` below 1): the mean squared residual, as a share of "
    "that of the best constant, is at most 0.2 for many tasks (1.01 for PooledRegressor) and 1 for "
    "many features": sizes,
}


def outcomes(kind, share, seed):
    """(name, Outcome) of every case of a kind."""
    rng = np.random.default_rng(seed)
    for name, measure, tolerance in KINDS[kind](rng, share):
        yield name, outcome(measure, tolerance)


def run(cases, seed):
    lines = []
    for kind in KINDS:
        found = list(outcomes(kind, cases, seed))
        endings = Counter(result.ending for _, result in found)
        largest = max((r.error for _, r in found if r.ending == "right"), default=0.0)
        words = "; ".join(
            f"{endings[ending]} {text}"
            for ending, text in [
                ("right", f"right, with errors of at most {largest:.1e}"),
                ("warned", "ended in a warning"), ("refused", "ended in an error"),
                ("wrong", "**wrong**"),
            ]
            if endings[ending]
        )  # fmt: skip
        wrong = "".join(f"; {name}: {r.words}" for name, r in found if r.ending == "wrong")
        figure = f"{len(found)} cases: {words}{wrong}"
        lines.append(Line(kind, figure, not wrong))
    return lines
