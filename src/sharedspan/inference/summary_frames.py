"""Parts of a summary as pandas DataFrames, with all digits and all rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharedspan.inference.summary import Summary

FIXED_COLUMNS = ("estimate", "std_error", "low", "high", "degrees", "statistic", "p_value")
VARIANCE_COLUMNS = ("group", "effect", "other_effect", "quantity", "estimate", "low", "high")
FIT_FIELDS = (
    "log_likelihood", "criterion", "aic", "bic", "residual_degrees", "icc", "r2_marginal",
    "r2_conditional",
)  # fmt: skip


def summary_frame(summary: Summary, part: str) -> Any:
    """The frame that ``Summary.to_frame`` returns."""
    parts = {"fixed": _fixed_frame, "variances": _variance_frame, "fit": _fit_frame}
    if part not in parts:
        raise ValueError(
            f"part is {part!r}, but a summary has the parts 'fixed', 'variances' and 'fit': "
            "give one of them, as in to_frame('variances')."
        )
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("to_frame needs pandas: pip install pandas") from error
    return parts[part](summary, pd)


def _fixed_frame(summary: Summary, pd: Any) -> Any:
    """Fixed effects by name; the columns are those that the model has."""
    table = summary.fixed
    if table is None:
        return pd.DataFrame({"estimate": np.empty(0)}, index=pd.Index([], name="effect"))
    # Names need not be valid Unicode, which the string types of pandas require.
    names = pd.Index(list(table.names), dtype=object, name="effect")
    columns = {name: vars(table)[name] for name in FIXED_COLUMNS}
    known = {name: values for name, values in columns.items() if values is not None}
    return pd.DataFrame(known, index=names)


def _variance_frame(summary: Summary, pd: Any) -> Any:
    """Standard deviations and correlations, then the noise and the family's parameters."""
    rows: list[tuple[Any, ...]] = []
    for entry in summary.variances:
        for i, name in enumerate(entry.names):
            rows.append((entry.group, name, None, "std", *entry.std_estimate(i)))
        for i, j in entry.pairs():
            pair = entry.names[j], entry.names[i]
            rows.append((entry.group, *pair, "correlation", *entry.correlation_estimate(i, j)))
    if summary.sigma is not None:
        rows.append(("Residual", None, None, "std", *summary.sigma))
    for name, estimate in summary.family_parameters:
        rows.append((None, None, None, name, *estimate))
    frame = pd.DataFrame(rows, columns=list(VARIANCE_COLUMNS), dtype=object)
    return frame.astype({"estimate": float, "low": float, "high": float})


def _fit_frame(summary: Summary, pd: Any) -> Any:
    """One row: rows, groups, and the measures of the fit that the model has."""
    groups = {f"n_{name}": count for name, count in summary.groups}
    fit = {name: vars(summary)[name] for name in FIT_FIELDS}
    known = {name: value for name, value in fit.items() if value is not None}
    return pd.DataFrame([{"n_rows": summary.n_rows, **groups, **known}])
