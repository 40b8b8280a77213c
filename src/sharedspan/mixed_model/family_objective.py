"""The likelihood of a fit to classes or counts, and the errors of all its parameters together.

Where responses are not normal, the best fixed effects b move with the variances. Their standard
errors come from the Hessian of -log L in (b, theta) together, as glmmTMB has them. Laplace's
approximation has an exact gradient at the modes of the tasks: that in the covariance is the one of
``likelihood.py``, and that in b is P (best b - b), with the best b that of the quadratics around
the modes. Variance groups of b are integrated out, and so is all of b in a restricted likelihood.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sharedspan.families import Family, NegativeBinomial
from sharedspan.kernels.reweighting import row_forms, row_products
from sharedspan.kernels.threads import one_blas_thread, over_tasks
from sharedspan.mixed_model.laplace import FamilyOptimizer
from sharedspan.mixed_model.likelihood import Evidence, MixedTasks, inverse_precision
from sharedspan.mixed_model.modes import FamilyRows
from sharedspan.mixed_model.objective import (
    EffectNames,
    VarianceComponent,
    free_entries,
    group_components,
    map_to_user,
    triangular_factor,
)
from sharedspan.mixed_model.optimize import LOWEST, CovarianceFit
from sharedspan.mixed_model.quadrature import MOST_EFFECTS
from sharedspan.mixed_model.quadrature import _Evaluation as QuadratureLikelihood
from sharedspan.mixed_model.structures import Coefficients
from sharedspan.mixed_model.terms import Covariance, TaskTerms
from sharedspan.statistics.canonical import Canonical

EXACT_MODES = 1e-18  # decrement of the log likelihood that is left at a mode
MOST_ROUNDS = 30  # of the modes of b and of the tasks in turn
RELATIVE_STEP = 1e-3  # of central differences, over the standard error along a direction
LEAST_INFORMATION = 0.01  # on a factor, over the largest there can be, that decides on its steps
LOG_DISPERSION_STEP = 1e-3
NO_CURVATURE = 1e-6  # over the expected information: rounding looks the same
MOST_VARIANCES = 100  # entries of theta whose error is taken into account


class FamilyObjective:
    """The likelihood of a fit to responses that are not normal, and that of other parameters.

    Theta consists of the free entries of the factors of the blocks in the user's units, the
    standard deviation of each variance group of b, and the logarithm of a dispersion.

    Parameters
    ----------
    optimizer : FamilyOptimizer
        With the rows of all tasks and the blocks of a formula.
    fit : CovarianceFit
        Of these blocks, by maximum or restricted likelihood.
    canonical : Canonical
        The way back to the user's units, in which responses have a scale of one.
    names : EffectNames
    approximation : {"laplace", "quadrature"}
        That of the fit. After quadrature, Laplace's approximation still gives the curvature of
        models with a dispersion, with variance groups, or with more effects than quadrature takes.
    """

    def __init__(
        self,
        optimizer: FamilyOptimizer,
        fit: CovarianceFit,
        canonical: Canonical,
        names: EffectNames,
        *,
        approximation: str = "laplace",
    ) -> None:
        self._rows = optimizer.rows.with_family(fit.modes.family)
        self._rows.mode_tol = EXACT_MODES  # differences of gradients need all digits of the modes
        self._fit, self._tasks = fit, fit.modes.tasks
        self.restricted, self.n_rows = optimizer.restricted, self._rows.rows.n_rows
        self.names = names
        self._parameters = parameters = _Parameters(self._rows, fit.modes.family, canonical)
        self.theta = parameters.theta_of(fit)
        self.b = parameters.to_user(fit.evidence.mean * parameters.flat)
        few = 1 <= fit.covariance.root.shape[1] <= parameters.n_columns <= MOST_EFFECTS
        plain = not (self.restricted or parameters.members or parameters.dispersed)
        self._by_quadrature = approximation == "quadrature" and few and plain

    def deviance(self, b: np.ndarray | None, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """-2 log L and its gradient, (f + q,), or (q,) for the restricted likelihood.

        Parameters
        ----------
        b : ndarray of shape (f,) or None
            Fixed effects in the user's units; None to integrate them out.
        theta : ndarray of shape (q,)
        """
        at = self._evaluate(b, theta)
        return at.deviance, at.gradient

    def joint_covariance(self) -> np.ndarray:
        """Covariance of the fixed effects and theta (f + q, f + q), by the observed Hessian.

        The Hessian consists of central differences of the gradient along f + q directions, in
        2 (f + q) + 1 evaluations; q directions and 2 q + 1 for a restricted likelihood. An
        evaluation is a pass over the rows, two with a dispersion or by quadrature, and about three
        if a part of b is integrated out. Parameters without curvature, such as a dispersion without
        end, have no variance here. More than 100 entries of theta are taken as known.
        """
        return self._joint_covariance.copy()

    def fixed(self) -> tuple[np.ndarray, np.ndarray]:
        """Estimates of the fixed effects (f,) in the user's units, and their covariance (f, f)."""
        f = len(self.b)
        estimate = self._parameters.to_user(self._fit.evidence.mean)
        return estimate, self._joint_covariance[:f, :f].copy()

    def components(self, theta: np.ndarray | None = None) -> list[VarianceComponent]:
        """The covariances of the effects, in the order of theta; by default as fitted."""
        parameters, components = self._parameters, []
        theta = self.theta if theta is None else theta
        F = parameters.factor(theta)
        for block, columns in zip(parameters.blocks, parameters.block_columns, strict=True):
            own = F[list(block.members), columns]
            names = tuple(self.names.coefficients[i] for i in block.members)
            options = block.kind, block.rank or 0
            components.append(VarianceComponent(self.names.groups[0], names, own @ own.T, *options))
        stds = parameters.group_stds(theta)
        return [*components, *group_components(self.names.variance_groups, stds)]

    @cached_property
    def _joint_covariance(self) -> np.ndarray:
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return self._errors()

    def _errors(self) -> np.ndarray:
        """See ``joint_covariance``.

        With the covariance S of the directions and the Jacobian J in them of the mean b, of which a
        part that has the covariance V given all parameters is integrated out, b has V + J S J'.
        """
        parameters, b, theta = self._parameters, self.b, self.theta
        first = 0 if self.restricted else len(b)
        base = self._laplace(None if self.restricted else b, theta, information=True)
        directions = parameters.directions(base, theta, first)
        count = directions.shape[1]
        slopes, jacobian = np.empty((count, len(directions))), np.empty((self._rows.p, count))
        for i, direction in enumerate(RELATIVE_STEP * directions.T):
            sides = []
            for sign in (1, -1):
                at = sign * direction
                known = None if self.restricted else b + at[:first]
                sides.append(self._evaluate(known, theta + at[first:]))
            slopes[i] = (sides[0].gradient - sides[1].gradient) / (2 * RELATIVE_STEP)
            jacobian[:, i] = (sides[0].mean - sides[1].mean) / (2 * RELATIVE_STEP)
        information = 0.5 * slopes @ directions
        values, axes = np.linalg.eigh((information + information.T) / 2)
        used = values > NO_CURVATURE
        to_user = parameters.A[parameters.flat]
        root = np.vstack([to_user @ jacobian, directions[first:]])
        root = root @ (axes[:, used] / np.sqrt(values[used]))
        covariance = root @ root.T
        covariance[: len(b), : len(b)] += to_user @ base.inner @ to_user.T
        return covariance

    def _evaluate(self, b: np.ndarray | None, theta: np.ndarray) -> _Evaluation:
        if b is not None and self._by_quadrature:
            return self._quadrature(b, theta)
        return self._laplace(b, theta)

    def _quadrature(self, b: np.ndarray, theta: np.ndarray) -> _Evaluation:
        parameters, mean = self._parameters, self._parameters.to_standard(b)
        covariance = parameters.covariance(theta)
        at = QuadratureLikelihood(self._rows, mean, covariance, self._fit)
        none = np.zeros(0)
        gradient = parameters.gradient(theta, at.b_gradient, at.root_gradient, none, 0.0)
        return _Evaluation(-2 * at.value, gradient, mean, np.zeros((len(mean), len(mean))))

    def _laplace(
        self, b: np.ndarray | None, theta: np.ndarray, information: bool = False
    ) -> _Evaluation:
        """Laplace's approximation, at the mode of what is integrated out of b."""
        parameters = self._parameters
        covariance, family = parameters.covariance(theta), parameters.family(theta)
        precision = self._tasks.prior_precision(parameters.taus(theta))
        integrated = parameters.integrated(b is None)
        known = np.zeros(self._rows.p) if b is None else parameters.to_standard(b)
        modes = _Modes(
            self._rows.with_family(family), self._fit.evidence, known, covariance, precision,
            replace(self._rows.coefficients, varying=parameters.varying, fixed=integrated),
            information,
        )  # fmt: skip
        e, deviance = modes.evidence, -2 * modes.evidence.value
        if b is None:
            to_user = parameters.A[np.ix_(parameters.flat, parameters.flat)]
            deviance -= len(to_user) * math.log(2 * math.pi) + 2 * np.linalg.slogdet(to_user)[1]
        by_mean = None if b is None else modes.by_mean
        by_loadings = 2 * e.gradient @ covariance.loadings
        slope = modes.dispersion_slope() if parameters.dispersed else 0.0
        gradient = parameters.gradient(theta, by_mean, by_loadings, e.prior_gradient[1:], slope)
        return _Evaluation(
            float(deviance), gradient, known + e.mean, e.mean_covariance, e,
            -modes.turn.dispersion[1],
        )  # fmt: skip


class _Evaluation(NamedTuple):
    """The likelihood at some parameters."""

    deviance: float
    gradient: np.ndarray  # (f + q,) or (q,), in the user's units
    mean: np.ndarray  # (p,) b
    inner: np.ndarray  # (p, p) covariance of what is integrated out of b
    evidence: Evidence | None = None
    dispersion_information: float = 0.0  # about that on the logarithm of the dispersion


class _Parameters:
    """Fixed effects and theta in the user's units, and what they are in standard units.

    Coefficients v in standard units are A v + shift in the user's.
    """

    def __init__(self, rows: FamilyRows, family: Family, canonical: Canonical) -> None:
        coefficients = rows.coefficients
        self.fitted_family, self.dispersed = family, isinstance(family, NegativeBinomial)
        self.fixed, self.members = coefficients.fixed, coefficients.members
        self.flat = coefficients.fixed & (coefficients.groups < 0)
        self.A, self.shift = map_to_user(rows.scaling, canonical, rows.p)
        self.shift[0] += rows.level  # zero without intercepts
        self.inverse = np.linalg.inv(self.A)
        # The members of a variance group have one unit.
        self.group_units = np.array([abs(self.A[group[0], group[0]]) for group in self.members])
        self.blocks, self.block_columns, self.n_columns = coefficients.blocks, [], 0
        at: list[np.ndarray] = [np.zeros((2, 0), dtype=int)]
        for block in self.blocks:
            i, j = free_entries(block.kind, len(block.members), block.rank or 0)
            at.append(np.array([np.array(block.members)[i], self.n_columns + j]))
            first, self.n_columns = self.n_columns, self.n_columns + int(j.max()) + 1
            self.block_columns.append(slice(first, self.n_columns))
        self.rows, self.columns = np.hstack(at)  # of the free entries of the factors
        self.varying = (self.inverse[:, self.rows] != 0).any(axis=1)

    def integrated(self, restricted: bool) -> np.ndarray:
        """Which coefficients of b are integrated out, (p,)."""
        return self.fixed if restricted else self.fixed & ~self.flat

    def theta_of(self, fit: CovarianceFit) -> np.ndarray:
        """Theta of a fit, (q,)."""
        F, family = np.zeros((len(self.A), self.n_columns)), fit.modes.family
        root = self.A @ fit.covariance.root
        for block, columns in zip(self.blocks, self.block_columns, strict=True):
            members = list(block.members)
            F[members, columns] = triangular_factor(root[members], block.kind, block.rank or 0)
        dispersion = [math.log(family.dispersion)] if self.dispersed else []
        stds = np.sqrt(fit.taus[1:]) * self.group_units
        return np.concatenate([F[self.rows, self.columns], stds, dispersion])

    def group_stds(self, theta: np.ndarray) -> np.ndarray:
        """Standard deviations of the variance groups."""
        n = len(self.rows)
        return theta[n : n + len(self.members)]

    def taus(self, theta: np.ndarray) -> np.ndarray:
        """Prior variances of b in standard units, those of slopes and of each group."""
        taus = (self.group_stds(theta) / self.group_units) ** 2
        return np.append(math.inf, np.maximum(taus, math.exp(LOWEST)))

    def factor(self, theta: np.ndarray) -> np.ndarray:
        """The factors of all blocks in the user's units, (p, k)."""
        F = np.zeros((len(self.A), self.n_columns))
        F[self.rows, self.columns] = theta[: len(self.rows)]
        return F

    def covariance(self, theta: np.ndarray) -> Covariance:
        """The covariance of the effects in standard units."""
        return Covariance(np.zeros(len(self.A)), self.inverse @ self.factor(theta))

    def family(self, theta: np.ndarray) -> Family:
        """The family with its dispersion."""
        if isinstance(self.fitted_family, NegativeBinomial):
            return self.fitted_family.with_dispersion(math.exp(theta[-1]))
        return self.fitted_family

    def to_user(self, mean: np.ndarray) -> np.ndarray:
        """The fixed effects (f,) in the user's units, from b (p,) in standard units."""
        return np.asarray((self.A @ mean + self.shift)[self.flat])

    def to_standard(self, b: np.ndarray) -> np.ndarray:
        """Fixed effects b (f,) in standard units, zero in all other coefficients, (p,)."""
        mean = np.zeros(len(self.A))
        block = self.A[np.ix_(self.flat, self.flat)]
        mean[self.flat] = np.linalg.solve(block, b - self.shift[self.flat])
        return mean

    def gradient(
        self, theta: np.ndarray, by_mean: np.ndarray | None, by_loadings: np.ndarray,
        by_log_taus: np.ndarray, by_log_dispersion: float,
    ) -> np.ndarray:  # fmt: skip
        """Gradient of the deviance, from those of the log likelihood in standard units."""
        parts: list[np.ndarray] = []
        if by_mean is not None:
            block = self.A[np.ix_(self.flat, self.flat)]
            parts.append(np.linalg.solve(block.T, by_mean[self.flat]))
        parts.append((self.inverse.T @ by_loadings)[self.rows, self.columns])
        stds, taus = self.group_stds(theta), self.taus(theta)[1:]
        moving = (taus > math.exp(LOWEST)) & (stds != 0)
        parts.append(2 * by_log_taus * moving / np.where(moving, stds, 1.0))
        parts.append(np.full(int(self.dispersed), by_log_dispersion))
        return -2 * np.concatenate(parts)

    def directions(self, at: _Evaluation, theta: np.ndarray, first: int) -> np.ndarray:
        """Directions (first + q, .) of about one standard error each, nearly independent.

        They are those of standard units, so that differences along them do not lose digits where
        the user's units are ill-conditioned. Without information there is no direction.
        """
        q, e = len(theta), at.evidence
        assert e is not None
        parts = [self._factor_directions(e)]
        stds = self.group_stds(theta)
        information = np.diag(e.prior_information)[1:]
        parts.append(np.diag(stds / np.sqrt(4 * information + LEAST_INFORMATION)))
        if self.dispersed:
            parts.append(np.array([[1 / math.sqrt(max(at.dispersion_information, 1.0))]]))
        D = np.zeros((first + q, first + q))
        if first:
            _, root, _, _ = inverse_precision(e.total, False, self.flat)
            D[:first, :first] = self.A[np.ix_(self.flat, self.flat)] @ root[self.flat]
        begin = first
        for part in parts if q <= MOST_VARIANCES else []:
            end = begin + len(part)
            D[begin:end, begin:end] = part
            begin = end
        return D[:, D.any(axis=0)]

    def _factor_directions(self, e: Evidence) -> np.ndarray:
        """Directions of the entries of the factors, (., .), by their expected information.

        A factor of zero has no expected information, but curvature up to that of its total K.
        """
        v, k, n = np.flatnonzero(self.varying), self.n_columns, len(self.rows)
        if not n:
            return np.zeros((0, 0))
        by_entries = np.zeros((len(v), k, n))
        by_entries[:, self.columns, np.arange(n)] = self.inverse[np.ix_(v, self.rows)]
        J = by_entries.reshape(-1, n)
        information = np.kron(LEAST_INFORMATION * e.total[np.ix_(v, v)], np.eye(k))
        if e.information is not None and e.information.loadings.size:
            information += e.information.loadings
        information = J.T @ information @ J
        information[np.diag_indices(n)] *= 1 + LEAST_INFORMATION**2  # collinear coefficients
        return np.asarray(np.linalg.inv(np.linalg.cholesky(information)).T)


class _Modes:
    """The tasks at their modes, with what is integrated out of b at its own.

    Parameters
    ----------
    rows : FamilyRows
    near : Evidence
        A fit whose modes are near.
    known : ndarray of shape (p,)
        Given coefficients of b; zero for those that are integrated out.
    covariance : Covariance
    precision : ndarray of shape (p,)
        Of the prior of b.
    coefficients : Coefficients
        The ``fixed`` ones are integrated out.
    information : bool
        Whether the evidence has the expected information.
    """

    def __init__(
        self, rows: FamilyRows, near: Evidence, known: np.ndarray, covariance: Covariance,
        precision: np.ndarray, coefficients: Coefficients, information: bool,
    ) -> None:  # fmt: skip
        self.rows, self.covariance, integrated = rows, covariance, coefficients.fixed
        mean, scores = near.mean * integrated, near.scores
        inner = near.mean_covariance * np.outer(integrated, integrated)
        for _ in range(MOST_ROUNDS):
            self.turn = rows.turn(known + mean, covariance, scores, inner)
            statistics, scores = self.turn.statistics, self.turn.scores
            # What is known of b is not part of the model whose evidence this is.
            statistics = replace(statistics, mode=statistics.mode - known)
            self.tasks = MixedTasks(statistics, rows.scaling, coefficients=coefficients)
            e = self.tasks.evaluate(covariance, precision, information=information)
            gap = e.mean - mean
            decrement = gap @ (e.total + np.diag(precision)) @ gap
            self.evidence, self.inner = e, inner
            mean, inner = e.mean, e.mean_covariance
            if not decrement > EXACT_MODES:
                break
        moved = self.tasks.map_terms(self._moved, covariance)
        self.moved = np.sum(moved, axis=0)
        self.shift = self.evidence.mean_covariance @ self.moved

    @property
    def by_mean(self) -> np.ndarray:
        """Gradient of the log likelihood in all of b, (p,)."""
        e = self.evidence
        return np.asarray(e.scores.sum(axis=0) + self.moved - e.total @ self.shift)

    def _moved(self, terms: TaskTerms) -> np.ndarray:
        """The sum over tasks of rho (p,), see ``likelihood.py``."""
        a = self.turn.statistics.linear[terms.ids]
        rho = a - np.einsum("tij,tj->ti", terms.K, a @ self.covariance.matrix)
        return np.asarray(rho.sum(axis=0))

    def dispersion_slope(self) -> float:
        """Gradient of the log likelihood in the logarithm of the dispersion.

        It changes each row's likelihood, the determinant by its weight, and the modes by its slope.
        """
        rows, C = self.rows, self.covariance.matrix
        T, p = rows.n_tasks, rows.p
        V, along = np.empty((T, p, p)), np.empty((T, p))

        def fill(terms: TaskTerms) -> None:
            rest = np.eye(p) - C @ terms.K
            V[terms.ids] = rest @ (C + self.inner @ rest.transpose(0, 2, 1))
            a = self.turn.statistics.linear[terms.ids]
            along[terms.ids] = np.einsum("tij,tj->ti", rest, a @ C + self.shift)

        self.tasks.map_terms(fill, self.covariance)
        slopes = np.empty(rows.n_chunks)

        def work(first: int, last: int) -> None:
            for chunk in range(first, last):
                slopes[chunk] = self._slope_of_rows(chunk, V, along)

        over_tasks(work, rows.n_chunks, 4.0 * rows.rows.n_rows * p**2)
        return float(slopes.sum())

    def _slope_of_rows(self, chunk: int, V: np.ndarray, along: np.ndarray) -> float:
        """What the rows of a chunk add to it."""
        part, mode = self.rows.read(chunk), self.turn.statistics.mode
        m = len(part.starts) - 1
        ids = slice(part.first, part.first + m)
        eta, moved, leverage = (np.empty(len(part.y)) for _ in range(3))
        row_products(part.Z, part.starts, mode[ids], 0, m, eta)
        row_products(part.Z, part.starts, along[ids], 0, m, moved)
        row_forms(part.Z, part.starts, V[ids], 0, m, leverage)
        family, sides = self.rows.family, []
        assert isinstance(family, NegativeBinomial)
        for step in (LOG_DISPERSION_STEP, -LOG_DISPERSION_STEP):
            near = family.with_dispersion(family.dispersion * math.exp(step))
            d = near.derivatives(part.y, part.offset + eta)
            sides.append(d.value - 0.5 * leverage * d.weight + moved * d.first)
        return float(part.weight @ (sides[0] - sides[1])) / (2 * LOG_DISPERSION_STEP)
