"""The likelihood of a fitted mixed model as a function of its variance parameters.

Standard errors, tests and intervals need the deviance -2 log L and its gradient at any variances,
in the user's units, whatever the levels of the model: ``MixedObjective`` is what they ask for. The
parameters theta are, for each block of effects in turn, the free entries of a lower triangular
factor F of their covariance FF'; then the standard deviation of each variance group of b; and last
the logarithm of sigma, the standard deviation of the noise.

``one_level.py`` has the objective of a model with one level of tasks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sharedspan.mixed_model.terms import Scaling
from sharedspan.statistics.canonical import Canonical

RESIDUAL = "Residual"  # the name of the noise among the groups of variance components
INTERCEPT = "(Intercept)"


@dataclass(frozen=True)
class EffectNames:
    """What coefficients are called, and what they vary between."""

    coefficients: Sequence[str]  # (p,), the intercept first if there is one
    groups: Sequence[str]  # the tasks, after the outer groups if there are any
    variance_groups: Sequence[str] = ()  # of b


@dataclass(frozen=True)
class VarianceComponent:
    """The covariance of effects that vary together, in the user's units.

    ``kind`` is that of a block, "variance" for one variance of all coefficients of a group, or
    "residual" for the noise.
    """

    group: str  # what they vary between, such as the name of the task column
    names: tuple[str, ...]  # (m,)
    covariance: np.ndarray  # (m, m)
    kind: str
    rank: int = 0  # columns of the factor of a block of low rank

    @property
    def effects(self) -> tuple[str, ...]:
        """What varies: of a variance group a curve, or the intercepts of a crossed group."""
        if self.kind != "variance":
            return self.names
        return ("curve" if self.group.startswith("s(") else INTERCEPT,)

    @property
    def std(self) -> np.ndarray:
        """Standard deviations, (m,)."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))

    @property
    def correlation(self) -> np.ndarray:
        """Correlations (m, m), not a number for effects that do not vary."""
        outer = np.outer(self.std, self.std)
        empty = np.full_like(outer, np.nan)
        return np.clip(np.divide(self.covariance, outer, out=empty, where=outer > 0), -1.0, 1.0)

    @property
    def free_entries(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the entries of the factor F that theta holds, in its order."""
        return free_entries(self.kind, len(self.names), self.rank)


class Evaluation(NamedTuple):
    """The likelihood at some theta."""

    deviance: float
    gradient: np.ndarray  # (q,)
    fixed: np.ndarray  # (f,)
    covariance: np.ndarray  # (f, f)


class MixedObjective(ABC):
    """A fitted Gaussian mixed model as inference sees it; its last evaluation is remembered."""

    theta: np.ndarray  # (q,) fitted variance parameters
    restricted: bool  # whether they are those of the restricted likelihood
    n_rows: int
    names: EffectNames
    _last: tuple[bytes, bool, Evaluation] | None = None

    def deviance(self, theta: np.ndarray, *, restricted: bool) -> tuple[float, np.ndarray]:
        """-2 log L at the best fixed effects, and its gradient (q,)."""
        at = self._evaluate(theta, restricted)
        return at.deviance, at.gradient

    def fixed(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Estimates (f,) of the fixed effects by generalised least squares, and covariances."""
        restricted = self.restricted
        if self._last is not None and self._last[0] == theta.tobytes():
            restricted = self._last[1]  # either likelihood has the same estimates
        at = self._evaluate(theta, restricted)
        return at.fixed, at.covariance

    def components(self, theta: np.ndarray) -> list[VarianceComponent]:
        """The covariances of the effects, in the order of theta; the last is that of the noise."""
        noise, groups = np.array([[math.exp(2 * theta[-1])]]), self.names.variance_groups
        return [
            *self.effect_components(theta),
            *group_components(groups, theta[len(theta) - 1 - len(groups) : -1]),
            VarianceComponent(RESIDUAL, ("",), noise, "residual"),
        ]

    @abstractmethod
    def effect_components(self, theta: np.ndarray) -> Iterator[VarianceComponent]:
        """The covariances of the blocks of effects, in the order of theta."""

    @abstractmethod
    def evaluation(self, theta: np.ndarray, restricted: bool) -> Evaluation:
        """The likelihood and the fixed effects at theta."""

    def _evaluate(self, theta: np.ndarray, restricted: bool) -> Evaluation:
        key = theta.tobytes()
        if self._last is None or self._last[:2] != (key, restricted):
            self._last = key, restricted, self.evaluation(theta, restricted)
        return self._last[2]


def group_components(groups: Sequence[str], stds: np.ndarray) -> Iterator[VarianceComponent]:
    """The variances of the variance groups of b, from their standard deviations."""
    for name, std in zip(groups, stds, strict=True):
        yield VarianceComponent(name, (name,), np.array([[std**2]]), "variance")


def free_entries(kind: str, m: int, rank: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the free entries of the factor F (m, k) of a covariance FF' (m, m).

    F is lower triangular, row by row, or diagonal; a covariance of rank k has k columns.
    """
    if kind == "diagonal":
        return np.arange(m), np.arange(m)
    rows, columns = np.tril_indices(m, m=rank if kind == "low_rank" else m)
    return rows, columns


def triangular_factor(root: np.ndarray, kind: str, rank: int = 0) -> np.ndarray:
    """The factor F with FF' = RR' for any root R (m, c), of a block's kind.

    Orthogonal transformations preserve the digits that the product RR' would lose.
    """
    m = len(root)
    if kind == "diagonal":
        return np.diag(np.linalg.norm(root, axis=1))
    k = rank if kind == "low_rank" else m
    if root.shape[1] > k:
        U, s, _ = np.linalg.svd(root, full_matrices=False)
        root = (U * s)[:, :k]
    root = np.pad(root, ((0, 0), (0, k - root.shape[1])))
    F: np.ndarray = np.transpose(np.linalg.qr(root.T, mode="r"))
    signs = np.where(np.diag(F) < 0, -1.0, 1.0)
    return np.tril(F * signs)


def map_to_user(scaling: Scaling, canonical: Canonical, p: int) -> tuple[np.ndarray, np.ndarray]:
    """A (p, p) and shift (p,): coefficients v in standard units are A v + shift in the user's."""
    intercept, shift = p > len(scaling.scale), np.zeros(p)
    slopes, level = replace(scaling, y_centre=0.0).from_standard(np.eye(p), intercept)
    slopes = canonical.to_user(slopes.T)
    if not intercept:
        return slopes, shift
    shift[0] = scaling.y_centre / canonical.units.y_scale
    return np.vstack([canonical.intercept_to_user(level, slopes), slopes]), shift
