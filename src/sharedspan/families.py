"""Families of responses: rules for reweighting rows.

At a fit's linear predictor eta a family gives every row a working weight and a working response;
the weighted statistics then go through the unchanged Gaussian machinery, turn by turn, until the
family is satisfied. Solvers and the mixed model know nothing of families.
"""

from __future__ import annotations

from typing import Any

from sharedspan.inputs.rows import TaskRows


class Gaussian:
    """Normal responses of constant variance: weights are one and y is the working response."""

    def reweight(self, rows: TaskRows, fitted: Any) -> TaskRows | None:
        """The rows with working weights and responses at a fit, or None once no turn is needed.

        Parameters
        ----------
        rows : TaskRows
        fitted : FittedSpan or None
            The fit of the last turn; None before the first one.
        """
        return rows if fitted is None else None


GAUSSIAN = Gaussian()
