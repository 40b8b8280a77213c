"""Posterior means and covariances of tasks within outer groups, given the covariances of both.

    v_s = b + u_r + u_s for a task s,     v_r = b + u_r for its outer group r

With ``nested.py``'s terms, and with B_s = I - C_s K_s, over s2,

    E v_r = b + C_r e_r,              Var v_r = W_r = M_r + B_r' V B_r
    E v_s = E v_r + C_s e_s,          Var v_s = C_s - C_s K_s C_s + B_s W_r B_s',

with V the covariance of b. A new task of a known group has Var v_r + C_s, and one of a new group
V + C_r + C_s. The conditional variances that software for mixed models reports of u_r and u_s take
b as known: M_r, and C_s - C_s K_s C_s + C_s K_s M_r K_s C_s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.nested_fit import NestedFit
from sharedspan.mixed_model.objective import map_to_user
from sharedspan.mixed_model.posterior import DOUBLE_ENTRIES, Posterior
from sharedspan.mixed_model.structures import Block
from sharedspan.mixed_model.terms import Scaling, TaskTerms
from sharedspan.statistics.canonical import Canonical


@dataclass(frozen=True)
class NestedPosterior:
    """Means and covariances of the coefficients of tasks and outer groups, in standard units.

    Covariances of (p, p) are packed: the p (p + 1) / 2 entries of the upper triangle.
    """

    mean: np.ndarray  # (T, p) of tasks
    packed: np.ndarray  # (T, q)
    degrees: np.ndarray  # (T,) degrees of freedom
    outer_mean: np.ndarray  # (R, p) of outer groups, b + u_r
    outer_packed: np.ndarray  # (R, q)
    outer_degrees: np.ndarray  # (R,)
    task_packed: np.ndarray  # (q,) C_s: what a new task adds to its outer group
    b: np.ndarray  # (p,)
    b_covariance: np.ndarray  # (p, p)
    new: np.ndarray  # (p, p), of a task of a new outer group
    noise: np.ndarray  # (T,) variances, means over rows
    new_noise: float
    degrees_of_freedom: float  # effective parameters
    canonical: Canonical
    scaling: Scaling

    def stacked(self) -> Posterior:
        """One entry for each task, and then one for a new task of each outer group."""
        R = len(self.outer_mean)
        packed = np.concatenate([self.packed, self.outer_packed + self.task_packed])
        return Posterior(
            mean=np.concatenate([self.mean, self.outer_mean]),
            packed=packed.astype(self.packed.dtype),
            b=self.b,
            b_covariance=self.b_covariance,
            new=self.new,
            noise=np.append(self.noise, np.full(R, self.new_noise)),
            new_noise=self.new_noise,
            degrees=np.append(self.degrees, self.outer_degrees),
            off=np.zeros(len(self.mean) + R),
            degrees_of_freedom=self.degrees_of_freedom,
            canonical=self.canonical,
            scaling=self.scaling,
            variance_function=None,
        )


@dataclass(frozen=True)
class EffectModes:
    """Conditional modes of the effects of some groups, in the user's units."""

    members: tuple[int, ...]  # coefficients
    mean: np.ndarray  # (G, m)
    covariance: np.ndarray  # (G, m, m), given the fixed effects and the variances

    @property
    def std(self) -> np.ndarray:
        """Conditional standard deviations, (G, m)."""
        return np.sqrt(np.maximum(np.einsum("gii->gi", self.covariance), 0.0))


def nested_posterior(
    tasks: MixedTasks, parent: np.ndarray, fit: NestedFit, canonical: Canonical
) -> NestedPosterior:
    """The posterior of all tasks and outer groups, with b and the noise estimated from all rows.

    The parent of each task, (T,), is the number of its outer group, from zero.
    """
    e, T, p = fit.evidence, tasks.n_tasks, tasks.p
    codes_of, C = np.asarray(parent, dtype=np.intp), fit.inner.matrix
    outer_mean, W = e.mean + e.outer_effects, e.variances(e.mean_covariance)
    i, j = np.triu_indices(p)
    mean, used = np.empty((T, p)), np.empty(T)
    packed = np.empty((T, len(i)), dtype=float if T * len(i) <= DOUBLE_ENTRIES else np.float32)

    def work(terms: TaskTerms) -> None:
        ids, codes = terms.ids, codes_of[terms.ids]
        scores, _ = terms.scores_and_squares(outer_mean[codes])
        CK = C @ terms.K
        rest = np.eye(p) - CK
        moved = rest @ W[codes]
        covariance = C - CK @ C + moved @ rest.transpose(0, 2, 1)
        mean[ids], packed[ids] = outer_mean[codes] + scores @ C, covariance[:, i, j] * e.noise
        used[ids] = np.einsum("tii->t", CK) + np.einsum("tij,tji->t", moved, terms.K)

    tasks.map_terms(work, fit.inner)
    outer_used = np.einsum("rij,rji->r", W, e.H)
    total = float(used.sum())
    left = max(float(tasks.n.sum()) - total, 1.0)
    degrees = _satterthwaite(used / p, left, T)
    # A new task varies by C_s, which is known from T tasks.
    outer_degrees = np.minimum(_satterthwaite(outer_used / p, left, len(W)), max(T - 1, 1))
    population = fit.outer.matrix + C + e.mean_covariance
    return NestedPosterior(
        mean=mean,
        packed=packed,
        degrees=degrees,
        outer_mean=outer_mean,
        outer_packed=W[:, i, j] * e.noise,
        outer_degrees=outer_degrees,
        task_packed=C[i, j] * e.noise,
        b=e.mean,
        b_covariance=e.mean_covariance * e.noise,
        new=population * e.noise,
        noise=e.noise * tasks.variances.mean,
        new_noise=e.noise * float(tasks.n @ tasks.levels / tasks.n.sum()),
        degrees_of_freedom=total,
        canonical=canonical,
        scaling=tasks.scaling,
    )


def _satterthwaite(share: np.ndarray, left: float, n_groups: int) -> np.ndarray:
    """Degrees of freedom of groups of whose effects their own rows determine a share.

    As far as effects are shrunk, their variance is known from all groups.
    """
    shrunk = 1 - np.clip(share, 0.0, 1.0)
    return np.asarray(1 / ((1 - shrunk) ** 2 / left + shrunk**2 / max(n_groups - 1, 1)))


def nested_modes(
    tasks: MixedTasks, parent: np.ndarray, fit: NestedFit, canonical: Canonical
) -> tuple[EffectModes, EffectModes]:
    """Conditional modes of the effects of outer groups and of tasks, in the user's units."""
    e, T, p = fit.evidence, tasks.n_tasks, tasks.p
    A, _ = map_to_user(tasks.scaling, canonical, p)
    C, M, codes_of = fit.inner.matrix, e.within, np.asarray(parent, dtype=np.intp)
    outer, inner = _members(fit.outer_blocks), _members(fit.inner_blocks)
    means = e.mean + e.outer_effects
    modes, covariances = np.empty((T, len(inner))), np.empty((T, len(inner), len(inner)))

    def work(terms: TaskTerms) -> None:
        codes, CK = codes_of[terms.ids], C @ terms.K
        scores, _ = terms.scores_and_squares(means[codes])
        V = C - CK @ C + CK @ M[codes] @ CK.transpose(0, 2, 1)
        modes[terms.ids] = scores @ C @ A[list(inner)].T
        covariances[terms.ids] = e.noise * A[list(inner)] @ V @ A[list(inner)].T

    tasks.map_terms(work, fit.inner)
    own = A[list(outer)]
    return (
        EffectModes(outer, e.outer_effects @ own.T, e.noise * own @ M @ own.T),
        EffectModes(inner, modes, covariances),
    )


def _members(blocks: tuple[Block, ...]) -> tuple[int, ...]:
    """The coefficients in some blocks, in their order."""
    return tuple(sorted(i for block in blocks for i in block.members))
