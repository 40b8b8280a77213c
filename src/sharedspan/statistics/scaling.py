"""The units that rows are counted in: no digits lost to a large level, no overflow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sharedspan.inputs.rows import Block, TaskRows

# Numbers whose squares and sums are safe in double precision need no rescaling.
SAFE = 2.0**128


@dataclass(frozen=True)
class Units:
    """Rows as the statistics see them: (x - origin) * scale, y * y_scale.

    Scales are powers of two, so they round nothing, and are one unless squares might overflow.
    The origin takes a common large level off the features; it is zero without intercepts.
    """

    origin: np.ndarray  # (d,)
    scale: np.ndarray  # (d,)
    y_scale: float
    stored_axes = "origin:d scale:d"

    @classmethod
    def of(cls, tasks: TaskRows, centred: bool, common_scale: bool = False) -> Units:
        """Units that suit the rows; ``common_scale`` keeps the features' proportions."""
        low, high, y_reach = tasks.extremes()
        origin = _typical(tasks) if centred else np.zeros_like(low)
        with np.errstate(over="ignore"):
            reach = np.maximum(high - origin, origin - low)
        if common_scale:
            reach = np.full_like(reach, reach.max())
        return cls(origin, _power_of_two(reach), float(_power_of_two(np.array(y_reach))))

    def including(self, other: Units) -> Units:
        """Units that suit the rows of both, with our origin."""
        scale, y_scale = np.minimum(self.scale, other.scale), min(self.y_scale, other.y_scale)
        return Units(self.origin, scale, y_scale)

    def rows(self, block: Block, P: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """The block's features and targets in these units, features mapped by P if given."""
        X = block.X
        X *= self.scale
        X -= self.origin * self.scale
        block.y[...] *= self.y_scale
        return (X if P is None else X @ P), block.y


def _typical(tasks: TaskRows) -> np.ndarray:
    """Median of each feature over some rows, (d,): near the bulk, whatever the outliers."""
    return np.quantile(tasks.sample(1000), 0.5, axis=0, method="lower")


def _power_of_two(reach: np.ndarray) -> np.ndarray:
    """The power of two that scales a magnitude to about 1; 1 where nothing can overflow."""
    _, exponent = np.frexp(np.minimum(reach, np.finfo(float).max))
    safe = (reach == 0) | ((reach < SAFE) & (reach > 1 / SAFE))
    return np.where(safe, 1.0, np.ldexp(1.0, np.clip(-exponent, -1000, 1000)))
