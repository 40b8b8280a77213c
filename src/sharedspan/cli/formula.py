"""``sharedspan fit TABLE FORMULA``: the mixed model of a formula, and its summary."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

from sharedspan.cli import errors, options, output

# Options of `sharedspan fit` that a formula leaves no room for, with their defaults.
WITHOUT_FORMULA = {
    "estimator": "AdaptiveSpanRegressor", "task": None, "target": None, "drop": (), "varying": (),
    "rank": None, "solver": None, "noise": None, "max_iter": None, "memory_limit": None,
    "checkpoint": None, "resume": None, "engine": None, "coefficients": None,
}  # fmt: skip


def fit_formula(
    formula: str, tables: tuple[str, ...], out: Path | None, as_json: bool, given: dict[str, Any]
) -> None:
    """Fit the model of a formula to tables, print its summary and save it if there is a place."""
    from sharedspan.formula.mixed import mixed

    if not tables:
        raise ValueError(f"Give a table before the formula {formula!r}.")
    if any(map(options.is_formula, tables)):
        raise ValueError(f"Give one formula, not several: {formula!r} and others were given.")
    for name, default in WITHOUT_FORMULA.items():
        if given.pop(name) != default:
            raise ValueError(
                f"--{name.replace('_', '-')} does not go with a formula, which says what is "
                "fitted: leave one of them out."
            )
    if out is not None:
        errors.check_model_output(out, tables)
    columns = options.columns_given(given)
    family = "gaussian" if given["family"] == "auto" else given["family"]
    began = time.perf_counter()
    with output.collected_warnings() as messages:
        model = mixed(
            formula,
            list(tables),
            family=family,
            reml=False if given["ml"] else None,
            weights=given["weights"],
            columns=columns,
        )
        summary = model.summary()
        if out is not None:
            model.save(out)
    result = {
        "formula": formula,
        "family": family,
        "method": model.method,
        "n_tasks": len(model.tasks_),
        "n_rows": model.n_rows_,
        "log_likelihood": model.log_likelihood_,
        "fixed": summary.to_dict(),
        "seconds": round(time.perf_counter() - began, 3),
        "warnings": messages,
        "out": out,
    }
    lines = ["The model was not saved: add -o, such as -o model.span, to save it."]
    if out is not None:
        lines = [f"Model: {out}", f"Next: {shlex.join(['sharedspan', *_next(model, tables, out)])}"]
    output.echo_result(result, [str(summary), "", *lines], as_json=as_json, warnings=messages)


def _next(model: Any, tables: tuple[str, ...], out: Path) -> list[str]:
    """What can be done with a model: a report, if it has slopes and a column as its response."""
    text = options.table_text_typed()
    if model.columns_.target is None or not len(model.coef_names_):
        return ["predict", str(out), *tables, *text, "-o", str(out.with_suffix(".csv"))]
    data = [part for table in tables for part in ("--data", table)]
    return ["report", str(out), *data, *text, "-o", str(out.with_suffix(".html"))]
