"""Families of responses: rules for reweighting rows.

At a fit's linear predictor eta a family gives every row a working weight and a working response.
The weighted statistics then pass through the unchanged Gaussian code, turn by turn, until the fit
is final. Solvers and the mixed model do not depend on families.
"""

from __future__ import annotations

from typing import Any

from sharedspan.inputs.rows import TaskRows


class Gaussian:
    """Normal responses of constant variance: weights are one and y is the working response."""

    def reweight(self, rows: TaskRows, fitted: Any) -> TaskRows | None:
        """The rows with working weights and responses at a fit, or None once the fit is final.

        Parameters
        ----------
        rows : TaskRows
        fitted : FittedSpan or None
            The fit of the last turn; None before the first one.
        """
        return rows if fitted is None else None


GAUSSIAN = Gaussian()
