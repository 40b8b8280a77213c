"""What a model with a formula retains of its fit, for tests, intervals and simulations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sharedspan.inputs.rows import TaskRows
from sharedspan.mixed_model.laplace import FamilyOptimizer
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.nested_fit import NestedFit
from sharedspan.mixed_model.optimize import CovarianceFit
from sharedspan.statistics.canonical import Canonical


@dataclass(frozen=True)
class NestedRetained:
    """The fit of two levels."""

    fit: NestedFit
    parent: np.ndarray  # (T,) number of the outer group of each task


@dataclass(frozen=True)
class RetainedFit:
    """The likelihood and the rows of a fit; model files do not hold them.

    Attributes
    ----------
    tasks : MixedTasks
        All tasks; those of families at their modes.
    fit : CovarianceFit, optional
        None if the tasks are nested groups.
    canonical : Canonical
        The way back to the user's units.
    rows : TaskRows
    restricted : bool
        Whether the likelihood is restricted.
    optimizer : FamilyOptimizer, optional
        Of responses that are not normal.
    nested : NestedRetained, optional
        If the tasks are nested groups.
    """

    tasks: MixedTasks
    fit: CovarianceFit | None
    canonical: Canonical
    rows: TaskRows
    restricted: bool
    optimizer: FamilyOptimizer | None = None
    nested: NestedRetained | None = None
