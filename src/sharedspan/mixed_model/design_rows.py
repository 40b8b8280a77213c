"""The rows of a retained fit in standard units, and numbers back in the user's units and order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sharedspan.mixed_model.retained import RetainedFit


class DesignBlock(NamedTuple):
    """Rows in standard units, with their tasks."""

    positions: slice  # of the rows among all
    Z: np.ndarray  # (rows, p)
    owner: np.ndarray  # (rows,) numbers of the tasks
    weight: np.ndarray  # (rows,) sample weights
    offset: np.ndarray  # (rows,) known part of the linear predictor, in the user's units


def fitted_rows(retained: RetainedFit) -> Iterator[tuple[DesignBlock, np.ndarray]]:
    """The rows of a fit in the order of their tasks, block by block, and their responses (rows,).

    Responses are in the user's units.
    """
    for block in retained.rows.blocks():
        design = DesignBlock(
            positions=block.positions,
            Z=standard_features(retained, block.X),
            owner=np.repeat(block.ids, np.diff(block.starts)),
            weight=block.weight,
            offset=np.zeros(len(block.y)) + block.offset,
        )
        yield design, block.y


def standard_features(retained: RetainedFit, X: np.ndarray) -> np.ndarray:
    """Rows X (m, d) in the user's units as [1, standardised features], (m, p)."""
    units, P = retained.canonical.units, retained.canonical.P
    features = (X - units.origin) * units.scale
    features = features if P is None else features @ P
    return retained.tasks.scaling.to_standard(features, bool(retained.tasks.intercept))


def predictor_to_user(retained: RetainedFit, eta: np.ndarray) -> np.ndarray:
    """Linear predictors in the user's units, given those in standard units."""
    scaling, unit = retained.tasks.scaling, retained.canonical.units.y_scale
    return np.asarray((scaling.y_centre + scaling.y_scale * eta) / unit)


def noise_unit(retained: RetainedFit) -> float:
    """The standard unit of responses, in the user's units."""
    return retained.tasks.scaling.y_scale / retained.canonical.units.y_scale


def in_given_order(retained: RetainedFit, values: np.ndarray) -> np.ndarray:
    """Values (rows, ...) in the order of the tasks as the rows of the fit were given.

    Rows of weight zero, which were not fitted, are not a number.
    """
    rows = retained.rows
    if rows.order is None:
        return values
    given = np.full((rows.y.shape[0], *values.shape[1:]), np.nan)
    given[rows.order] = values
    return given
