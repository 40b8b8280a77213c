"""Fitted mixed models as inference sees them, from rows, and the same by dense Gaussians."""

import numpy as np

from sharedspan.inputs.rows import validate_rows
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.objective import EffectNames
from sharedspan.mixed_model.one_level import OneLevelObjective
from sharedspan.mixed_model.optimize import CovarianceOptimizer
from sharedspan.mixed_model.structures import Block, Coefficients
from sharedspan.mixed_model.terms import Scaling
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.task_statistics import Units, collect

INTERCEPTS = (Block("full", (0,)),)
SLOPES = (Block("full", (0, 1)),)
INDEPENDENT_SLOPES = (Block("diagonal", (0, 1)),)


def one_level(
    X, y, task, blocks=INTERCEPTS, *, groups=None, fixed=None, restricted=True, shifted=False,
    kind="gram", canonical=None,
):  # fmt: skip
    """The fit of blocks; ``groups`` (d,) numbers the variance groups of features, -1 for none."""
    X = np.asarray(X, dtype=float)
    d = X.shape[1]
    groups = np.append(-1, np.full(d, -1) if groups is None else groups).astype(int)
    varying = np.zeros(d + 1, dtype=bool)
    varying[[i for block in blocks for i in block.members]] = True
    fixed = np.ones(d + 1, dtype=bool) if fixed is None else np.asarray(fixed)
    coefficients = Coefficients(varying, groups, fixed, tuple(blocks))
    rows = validate_rows(X, y, task)
    units = Units(np.zeros(d), np.ones(d), 1.0) if canonical is None else canonical.units
    statistics = collect(rows, units, True, kind)
    P = None if canonical is None else canonical.P
    if P is not None:
        statistics.transform(P)
    canonical = Canonical(units, P)
    scaling = Scaling.of(statistics, True, [group - 1 for group in coefficients.members])
    if not shifted:  # effects at the origin of the features, as formulas have them
        zero = -units.origin * units.scale
        centre = zero if P is None else zero @ P
        scaling = Scaling(centre, scaling.scale, fixed[0] * scaling.y_centre, scaling.y_scale)
    tasks = MixedTasks(statistics, scaling, None, None, restricted, coefficients)
    fit = CovarianceOptimizer(tasks, flat=True).fit("given", tol=1e-10)
    names = ["(Intercept)", *(f"x{i}" for i in range(1, d + 1))]
    variances = [f"group {i}" for i in range(len(coefficients.members))]
    return OneLevelObjective(tasks, fit, canonical, EffectNames(names, ("g",), variances))


def dense_deviance(X, y, task, blocks, theta, components, *, groups=None, fixed=None,
                   restricted=True):  # fmt: skip
    """-2 log L, estimates and covariances from the whole covariance of all rows."""
    Z = np.column_stack([np.ones(len(y)), X])
    groups = np.append(-1, np.full(X.shape[1], -1) if groups is None else groups)
    fixed = np.ones(Z.shape[1], dtype=bool) if fixed is None else np.asarray(fixed)
    S = np.exp(2 * theta[-1]) * np.eye(len(y))
    same = task[:, None] == task
    for block, component in zip(blocks, components, strict=False):
        members = list(block.members)
        S += same * (Z[:, members] @ component.covariance @ Z[:, members].T)
    variances = [each for each in components if each.kind == "variance"]
    for number, component in enumerate(variances):
        columns = Z[:, groups == number]
        S += component.covariance[0, 0] * columns @ columns.T
    F = Z[:, (groups < 0) & fixed]
    inverse = np.linalg.inv(S)
    V = np.linalg.inv(F.T @ inverse @ F)
    beta = V @ F.T @ inverse @ y
    rest = y - F @ beta
    n = len(y)
    value = np.linalg.slogdet(S)[1] + rest @ inverse @ rest + n * np.log(2 * np.pi)
    if restricted:
        value -= np.linalg.slogdet(V)[1] + F.shape[1] * np.log(2 * np.pi)
    return value, beta, V
