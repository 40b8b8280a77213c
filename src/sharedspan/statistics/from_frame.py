"""Task statistics from a frame with a row for each task, such as a database makes.

The frame has the sums of products of deviations from its means. From them follow the Gram, an
anchor near least squares and the sums at that anchor, for each task. The residual sum of squares is
then a difference of sums, with an error of a rounding error of the squares of y.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.inputs.frame_columns import FrameColumns
from sharedspan.inputs.labels import task_codes
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.statistics.database import (
    FOLD,
    MEANS,
    N_MISSING,
    N_ROWS,
    NAMES,
    PRODUCTS,
    REMAINDERS,
    TASK,
)
from sharedspan.statistics.folds import N_FOLDS, StatisticFolds
from sharedspan.statistics.grams import CONSTANT, GramStatistics
from sharedspan.statistics.task_statistics import TaskStatistics, Units

# Sums whose smallest eigenvalue, with ones on the diagonal, is below minus this are not sums of
# products. Sums of a billion products have rounding errors of about 1e-12.
INDEFINITE = 1e-9
ANCHOR_RIDGE = 1e-10  # as a share of each diagonal entry; see kernels.accumulate
BLOCK = 1 << 21  # numbers in the matrices that are made at once


@dataclass(frozen=True)
class FrameStatistics:
    """Statistics that were read from a frame."""

    statistics: TaskStatistics  # with StatisticFolds instead of rows, if the frame has folds
    names: tuple[str, ...] | None  # of the features, if the frame has them
    task: str | None  # name of the task column of the rows
    n_dropped: int  # rows that the database left out


def read_statistics(
    frame: Any, centred: bool, *, common_scale: bool = False, missing: str = "error"
) -> FrameStatistics:
    """Task statistics from a frame; see ``TaskEstimator.fit_statistics`` for its columns.

    Parameters
    ----------
    frame : pandas, polars or pyarrow table
    centred : bool
        Whether tasks have intercepts.
    common_scale : bool
        Whether features stay in proportion; see ``Units.of``.
    missing : {"error", "drop"}
        Whether rows may have been left out for missing values.
    """
    if missing not in ("error", "drop"):
        raise ValueError(f"missing={missing!r} must be 'error' or 'drop'.")
    columns = FrameColumns(frame, TASK, required=(TASK, N_ROWS, MEANS, PRODUCTS))
    n_dropped = _dropped(columns, missing)
    n = columns.numbers(N_ROWS)
    used = columns.known & (n > 0)
    if not used.any():
        raise ValueError(f"The column {N_ROWS!r} has no positive number: there is nothing to fit.")
    columns.select(used)
    labels, codes = task_codes(columns.labels[used], len(columns.rows), TASK)
    fold_of = _folds(columns, codes)
    sums = Sums.of(columns, n[used])
    names, task = _names(columns, sums.n_features)
    units, T, folds = sums.units(centred, common_scale), len(labels), None
    if FOLD in columns:
        parts = (
            sums.take(fold_of == fold).statistics(codes[fold_of == fold], T, centred, units)
            for fold in range(N_FOLDS)
        )
        folds = StatisticFolds([anchored(part) for part in parts])
        sums, codes = sums.merged(codes), np.arange(T)
    whole = sums.statistics(codes, T, centred, units)
    shown = names or tuple(f"x{j}" for j in range(sums.n_features))
    statistics = TaskStatistics(anchored(whole), units, labels, shown, folds)
    return FrameStatistics(statistics, names, task, n_dropped)


def _dropped(columns: FrameColumns, missing: str) -> int:
    """The number of rows that were left out; ValueError if there may be none."""
    left_out = columns.numbers(N_MISSING) if N_MISSING in columns else np.zeros(len(columns.rows))
    left_out = np.where(columns.known, left_out, left_out + columns.numbers(N_ROWS))
    n_dropped = int(left_out.sum())
    if n_dropped and missing == "error":
        where = np.flatnonzero(left_out)
        others = f" and {len(where) - 1} more" if len(where) > 1 else ""
        raise ValueError(
            f"{n_dropped} row(s) of {columns.where(where[0])}{others} were left out of the sums, "
            "because a used column is NULL or NaN there: fill it in the table, or give "
            "missing='drop' to fit without them."
        )
    return n_dropped


def _folds(columns: FrameColumns, codes: np.ndarray) -> np.ndarray:
    """The fold of each row of the frame; zero without folds."""
    fold = np.zeros(len(codes), dtype=np.int64)
    if FOLD in columns:
        given = columns.numbers(FOLD)
        bad = (given != np.floor(given)) | (given >= N_FOLDS)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"The column {FOLD!r} is {given[row]:g} for {columns.where(row)}: give whole "
                f"numbers from 0 to {N_FOLDS - 1}."
            )
        fold = given.astype(np.int64)
    order = np.argsort(codes * N_FOLDS + fold, kind="stable")
    twice = (np.diff(codes[order]) == 0) & (np.diff(fold[order]) == 0)
    if twice.any():
        row = int(order[np.argmax(twice)])
        of_fold = f" and fold {fold[row]}" if FOLD in columns else ""
        raise ValueError(
            f"The column {TASK!r} has two rows of {columns.where(row)}{of_fold}: give one row for "
            "each task, or fit each frame and add the models by merge."
        )
    return fold


def _names(columns: FrameColumns, n_features: int) -> tuple[tuple[str, ...] | None, str | None]:
    """The names of the features and of the task column, if the frame has them."""
    if NAMES not in columns:
        return None, None
    distinct = columns.texts(NAMES)
    try:
        (text,) = distinct
        names = json.loads(text)
        features, task = tuple(names["features"]), names["task"]
        valid = all(isinstance(name, str) for name in (*features, task))
    except (ValueError, TypeError, KeyError):
        valid = False
    if not valid:
        raise ValueError(
            f"The column {NAMES!r} must hold the same text in all rows, JSON with task, target and "
            "features, as sharedspan.statistics_query writes it; leave it out if there is none."
        )
    if len(features) != n_features:
        raise ValueError(
            f"The column {NAMES!r} names {len(features)} features, but the column {MEANS!r} holds "
            f"means of {n_features} and the target: give a name for each."
        )
    return features, task


@dataclass(frozen=True)
class Sums:
    """Checked sums in the order of the frame; the target is the last of d + 1 columns."""

    n: np.ndarray  # (m,)
    means: np.ndarray  # (m, d + 1)
    remainders: np.ndarray  # (m, d + 1) to be added to the means, which are rounded
    products: np.ndarray  # (m, (d + 1) (d + 2) / 2) of deviations from the sum of both, packed

    @classmethod
    def of(cls, columns: FrameColumns, n: np.ndarray) -> Sums:
        """The sums of a frame; ValueError if they cannot be sums over rows."""
        means = columns.arrays(MEANS)
        width = means.shape[1]
        if width < 2:
            raise ValueError(
                f"The column {MEANS!r} has {width} number(s) for {columns.where(0)}: give the "
                "means of the features and, last, of the target."
            )
        products = columns.arrays(PRODUCTS, width * (width + 1) // 2)
        remainders = np.zeros_like(means)
        if REMAINDERS in columns:
            remainders = columns.arrays(REMAINDERS, width)
        i, j = np.triu_indices(width)
        squares = products[:, i == j]
        with np.errstate(over="ignore", invalid="ignore"):
            products = products - n[:, None] * remainders[:, i] * remainders[:, j]
        row = first_indefinite(products, squares)
        if row is not None:
            raise ValueError(
                f"The column {PRODUCTS!r} is not positive semidefinite for {columns.where(row)}: "
                f"give sums of products of deviations from the column {MEANS!r}, the upper "
                "triangle row by row."
            )
        return cls(n, means, remainders, products).without_rounding()

    def without_rounding(self) -> Sums:
        """The sums, in which what varies by the rounding of its mean alone is constant."""
        i, j = np.triu_indices(self.means.shape[1])
        with np.errstate(over="ignore"):
            smallest = self.n[:, None] * (CONSTANT * self.means) ** 2
        constant = self.products[:, i == j] <= smallest
        self.products[constant[:, i] | constant[:, j]] = 0.0
        return self

    @property
    def n_features(self) -> int:
        return self.means.shape[1] - 1

    def take(self, mask: np.ndarray) -> Sums:
        """The sums of some rows of the frame."""
        return Sums(*(each[mask] for each in vars(self).values()))

    def merged(self, codes: np.ndarray) -> Sums:
        """The sums of each task, from parts of its rows; ``codes`` are the parts' tasks.

        Means of parts are compared with each other, and not with an origin far away.
        """
        _, first = np.unique(codes, return_index=True)
        means, n = self.means[first], np.bincount(codes, self.n)
        offset = (self.means - means[codes]) + self.remainders
        remainders = np.zeros_like(means)
        np.add.at(remainders, codes, self.n[:, None] * offset)
        remainders /= n[:, None]
        offset -= remainders[codes]
        i, j = np.triu_indices(means.shape[1])
        products = np.zeros((len(n), self.products.shape[1]))
        np.add.at(products, codes, self.products + self.n[:, None] * offset[:, i] * offset[:, j])
        return Sums(n, means, remainders, products).without_rounding()

    def units(self, centred: bool, common_scale: bool) -> Units:
        """Units that suit the rows, with an origin near most tasks."""
        origin = np.zeros(self.n_features)
        if centred:
            means = (self.means + self.remainders)[:, :-1]
            origin = np.quantile(means, 0.5, axis=0, method="lower")
        i, j = np.triu_indices(self.means.shape[1])
        deviations = np.sqrt(self.products[:, i == j])
        reach = (np.abs(self._means_from(origin)) + deviations).max(axis=0)
        return Units.reaching(origin, reach[:-1], reach[-1], common_scale)

    def _means_from(self, origin: np.ndarray) -> np.ndarray:
        """The means minus an origin; the difference is exact if they are close together."""
        return (self.means - np.append(origin, 0.0)) + self.remainders

    def statistics(
        self, codes: np.ndarray, n_tasks: int, centred: bool, units: Units
    ) -> GramStatistics:
        """The statistics of ``n_tasks`` tasks, those of ``codes`` filled in, with zero anchors."""
        d, scale = self.n_features, np.append(units.scale, units.y_scale)
        i, j = np.triu_indices(d + 1)
        products = self.products * (scale[i] * scale[j])
        mean = self._means_from(units.origin) * scale
        if not centred:
            products += self.n[:, None] * mean[:, i] * mean[:, j]
            mean[:] = 0.0
        own = GramStatistics(n_tasks, d, centred)
        own.n[codes] = self.n
        own.mean[codes], own.y_mean[codes] = mean[:, :d], mean[:, d]
        own.packed[codes] = products[:, j < d]
        own.g[codes], own.q[codes] = products[:, (i < d) & (j == d)], products[:, -1]
        return own


def anchored(statistics: GramStatistics) -> GramStatistics:
    """The statistics with an anchor near least squares for each task, in place.

    Their anchors must be zero, so that g = X'y and q = y'y.
    """
    d = statistics.n_features
    anchor = np.zeros_like(statistics.anchor)
    for tasks, G in _matrices(statistics.packed, d):
        scale = np.sqrt(np.einsum("tjj->tj", G))
        scale = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
        G *= scale[:, :, None]
        G *= scale[:, None]
        np.einsum("tjj->tj", G)[:] = 1.0 + ANCHOR_RIDGE
        right = scale * statistics.g[tasks]
        with one_blas_thread():
            anchor[tasks] = scale * np.linalg.solve(G, right[..., None])[..., 0]
    g, q = statistics.at_anchor(anchor)
    better = q <= statistics.q
    for name, values in (("anchor", anchor), ("g", g), ("q", q)):
        getattr(statistics, name)[better] = values[better]
    return statistics


def first_indefinite(products: np.ndarray, squares: np.ndarray) -> int | None:
    """The first of packed matrices that is not positive semidefinite, up to rounding errors.

    Parameters
    ----------
    products : ndarray of shape (m, width (width + 1) / 2)
    squares : ndarray of shape (m, width)
        Sizes of the diagonal entries before what was subtracted from them.
    """
    width = squares.shape[1]
    for tasks, S in _matrices(products, width):
        size = squares[tasks]
        # Next to a square of zero all products are zero.
        scale = 1 / np.sqrt(np.where(size > 0, size, np.finfo(float).tiny))
        with np.errstate(over="ignore"):
            S *= scale[:, :, None]
            S *= scale[:, None]
        np.einsum("tjj->tj", S)[:] += INDEFINITE
        bad = (size < 0).any(axis=1) | ~np.isfinite(S).all(axis=(1, 2))
        if not bad.any():
            try:
                with one_blas_thread():
                    np.linalg.cholesky(S)
                continue
            except np.linalg.LinAlgError:
                pass
        S[bad] = -np.eye(width)
        return tasks.start + int(np.argmax(np.linalg.eigvalsh(S)[:, 0] <= 0))
    return None


def _matrices(packed: np.ndarray, width: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Unpacked symmetric matrices, (b, width, width), one block of tasks at a time."""
    place = np.zeros((width, width), dtype=np.int64)
    place[np.triu_indices(width)] = np.arange(packed.shape[1])
    place = np.maximum(place, place.T)
    step = max(BLOCK // width**2, 1)
    for lo in range(0, len(packed), step):
        tasks = slice(lo, min(lo + step, len(packed)))
        yield tasks, packed[tasks][:, place]
