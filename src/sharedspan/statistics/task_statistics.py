"""Task statistics: sufficient statistics with their units, and the names of tasks and features.

Later rows and the statistics of other sites are added here: statistics merge, once they have common
units, tasks and anchors.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sharedspan.inputs.labels import canonical_order
from sharedspan.inputs.rows import RowBlock, TaskRows
from sharedspan.kernels.threads import extremes
from sharedspan.statistics.grams import GramStatistics, TaskMeans, Watch
from sharedspan.statistics.rows import RowStatistics, Statistics

# Raw rows are the cheaper statistics below this many rows per feature (`benchmarks/crossover.py`).
ROWS_PER_FEATURE = 0.5

# Numbers whose squares and sums are safe in double precision need no rescaling.
SAFE = 2.0**128


@dataclass(frozen=True)
class Units:
    """Rows as the statistics see them: (x - origin) * scale, y * y_scale.

    Scales are powers of two, so they round nothing, and are one unless squares might overflow.
    The origin is subtracted to remove a large common level; it is zero without intercepts.
    """

    origin: np.ndarray  # (d,)
    scale: np.ndarray  # (d,)
    y_scale: float
    stored_axes = "origin:d scale:d"

    @classmethod
    def of(cls, tasks: TaskRows, centred: bool, common_scale: bool = False) -> Units:
        """Units that suit the rows; ``common_scale`` keeps the features' proportions."""
        low, high, y_reach = tasks.extremes()
        origin = cls.plain(tasks, centred).origin
        with np.errstate(over="ignore"):
            reach = np.maximum(high - origin, origin - low)
        return cls.reaching(origin, reach, y_reach, common_scale)

    @classmethod
    def reaching(
        cls, origin: np.ndarray, reach: np.ndarray, y_reach: float, common_scale: bool
    ) -> Units:
        """Units for features (d,) and responses of at most these distances from the origin."""
        if common_scale:
            reach = np.full_like(reach, reach.max())
        return cls(origin, _power_of_two(reach), float(_power_of_two(np.array(y_reach))))

    @classmethod
    def plain(cls, tasks: TaskRows, centred: bool) -> Units:
        """Units with scales of one, and with an origin near most rows, whatever the outliers."""
        d = tasks.n_features
        origin = np.zeros(d)
        if centred:
            origin = np.quantile(tasks.sample(1000), 0.5, axis=0, method="lower")
        return cls(origin, np.ones(d), 1.0)

    @property
    def has_scales(self) -> bool:
        """Whether any scale differs from one."""
        return bool((self.scale != 1).any() or self.y_scale != 1)

    def squares_to_user(self, squares: np.ndarray) -> np.ndarray:
        """Squares of responses in the user's units; zero or infinite where they have no number."""
        with np.errstate(over="ignore", under="ignore"):
            return squares / self.y_scale / self.y_scale

    def including(self, other: Units) -> Units:
        """Units that suit the rows of both, with the origin of these."""
        scale, y_scale = np.minimum(self.scale, other.scale), min(self.y_scale, other.y_scale)
        return Units(self.origin, scale, y_scale)

    def rows(self, block: RowBlock, P: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """The block's features and targets in these units, features mapped by P if given."""
        X = block.X
        X *= self.scale
        X -= self.origin * self.scale
        block.y[...] *= self.y_scale
        return (X if P is None else X @ P), block.y


def _power_of_two(reach: np.ndarray) -> np.ndarray:
    """The power of two that scales a magnitude to about 1; 1 if nothing can overflow."""
    _, exponent = np.frexp(np.minimum(reach, np.finfo(float).max))
    safe = (reach == 0) | ((reach < SAFE) & (reach > 1 / SAFE))
    return np.where(safe, 1.0, np.ldexp(1.0, np.clip(-exponent, -1000, 1000)))


@dataclass(frozen=True)
class TaskStatistics:
    """Statistics in ``units``, not yet canonical, with the names of tasks and features."""

    statistics: Any  # GramStatistics, RowStatistics or ClusterStatistics; None for bare rows
    units: Any  # Units; None for bare rows
    labels: Sequence[Hashable]  # (T,) in canonical order
    names: tuple[str, ...]  # (d,)
    rows: Any = None  # TaskRows, or the rows of a cluster, if they can be read again
    # Further moments, collected in the pass over the rows.
    moments: Any = field(default=None, metadata={"stored": False})

    def copy(self) -> TaskStatistics:
        """A copy whose statistics a fit may change, without rows."""
        statistics = self.statistics.take(np.arange(len(self.labels)))
        return TaskStatistics(statistics, self.units, tuple(self.labels), self.names)

    def plus(
        self, tasks: TaskRows, *, forgetting: float = 1.0, common_scale: bool = False
    ) -> TaskStatistics:
        """The statistics of these and of further rows, of known or new tasks.

        Parameters
        ----------
        tasks : TaskRows
        forgetting : float
            Factor on the weights of the rows so far.
        common_scale : bool
            Whether features stay in proportion; see ``Units.of``.
        """
        tasks.require_finite()
        units = Units.of(tasks, self.statistics.centred, common_scale)
        units = self.units.including(units)
        labels, old, new = _joined(self.labels, tasks.labels)
        total = self.statistics.placed(old, len(labels)).rescaled(self.units, units)
        total.weighted(forgetting)
        chunk = GramStatistics(tasks.n_tasks, tasks.n_features, total.centred)
        chunk.anchor[:] = total.anchor[new]  # with one anchor sums merge by addition
        chunk.update(tasks, units)
        return TaskStatistics(total.merge(chunk, new), units, labels, self.names)

    def merged(self, other: TaskStatistics) -> TaskStatistics:
        """The statistics of these rows and of the rows of another site."""
        units = self.units.including(other.units)
        labels, old, new = _joined(self.labels, other.labels)
        total = self.statistics.placed(old, len(labels)).rescaled(self.units, units)
        added = other.copy().statistics.rescaled(other.units, units)
        return TaskStatistics(total.merge(added, new), units, labels, self.names)


def gather(
    rows: TaskRows,
    centred: bool,
    *,
    common_scale: bool = False,
    kind: str = "auto",
    moments: Any = None,
) -> TaskStatistics:
    """Statistics of the rows of all tasks, by one pass over them.

    Parameters
    ----------
    rows : TaskRows
    centred : bool
        Whether tasks have intercepts.
    common_scale : bool
        Whether features stay in proportion; see ``Units.of``.
    kind : {"auto", "gram", "rows"}
        See ``collect``.
    moments : object with a method ``watch`` of RowBlock, optional
        Its method is called with each block of rows in the units of the statistics, to collect
        further moments.
    """
    watch = None if moments is None else moments.watch
    partly = rows.n_rows < len(rows.X) if isinstance(rows.X, np.ndarray) else True
    if rows.checked or partly or watch is not None or chosen_kind(rows, kind) == "rows":
        rows.require_finite()
        units = Units.of(rows, centred, common_scale)
        statistics = collect(rows, units, centred, kind, watch)
    else:  # values are checked by their sums, which hardly ever need scales other than one
        units = Units.plain(rows, centred)
        statistics = GramStatistics.from_rows(rows, units, centred)
        if not has_safe_values(statistics, rows):
            rows.require_finite()
            units = Units.of(rows, centred, common_scale)
            if units.has_scales:
                statistics = GramStatistics.from_rows(rows, units, centred)
    return TaskStatistics(statistics, units, rows.labels, rows.names, rows, moments)


def has_safe_values(statistics: TaskMeans, rows: TaskRows, y_largest: float | None = None) -> bool:
    """Whether the sums show that all values were finite, and that no square overflowed.

    If x is a feature of a row of weight w, |x - mean| is at most sqrt(G / w). The statistics must
    be in units of scale one. The largest |y| is computed unless it is given.
    """
    weight = 1.0 if rows.weight is None else rows.weight[rows.weight > 0].min()
    squares = np.diag(statistics.pooled_gram())
    level = statistics.largest_levels()
    with np.errstate(invalid="ignore", over="ignore"):
        largest = np.sqrt(squares / weight) + level
        smallest = np.maximum(np.sqrt(squares / statistics.n.sum()), level)
    if y_largest is None:
        low, high = extremes(np.asarray(rows.y))
        y_largest = max(high, -low)
    safe = (largest < SAFE) & (smallest > 1 / SAFE)
    return bool(safe.all()) and (y_largest == 0 or 1 / SAFE < y_largest < SAFE)


def cheaper_kind(n: float, n_tasks: int, n_features: int) -> str:
    """The kind of statistics, "rows" or "gram", that makes the pass R(V) cheaper.

    It depends on n, the sum of weights, not on the number of rows: a row of weight two is treated
    as a row written twice.
    """
    return "rows" if n < ROWS_PER_FEATURE * n_features * n_tasks else "gram"


def collect(
    tasks: TaskRows, units: Units, centred: bool, kind: str = "auto", watch: Watch | None = None
) -> Statistics:
    """One pass over the rows.

    Parameters
    ----------
    tasks : TaskRows
    units : Units
    centred : bool
        Whether tasks have intercepts.
    kind : {"auto", "gram", "rows"}
        "auto" takes the kind that makes the pass R(V) cheaper.
    watch : callable of RowBlock, optional
        Called with each block of rows, to collect further moments in the same pass.
    """
    if chosen_kind(tasks, kind) == "rows":
        return RowStatistics(tasks, units, centred, watch)
    return GramStatistics.from_rows(tasks, units, centred, watch)


def chosen_kind(tasks: TaskRows, kind: str) -> str:
    """The kind of statistics, "rows" or "gram", for kind "auto" the cheaper one."""
    if kind != "auto":
        return kind
    n = float(tasks.n_rows) if tasks.weight is None else tasks.sizes().sum()
    return cheaper_kind(n, tasks.n_tasks, tasks.n_features)


def _joined(
    first: Sequence[Hashable], second: Sequence[Hashable]
) -> tuple[tuple[Hashable, ...], np.ndarray, np.ndarray]:
    """All labels in canonical order, and the places of the first and second labels among them."""
    labels = tuple(canonical_order([*first, *second]))
    place = {label: i for i, label in enumerate(labels)}
    return (
        labels,
        np.array([place[label] for label in first], dtype=np.int64),
        np.array([place[label] for label in second], dtype=np.int64),
    )
