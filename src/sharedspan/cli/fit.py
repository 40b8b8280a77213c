"""``sharedspan fit``: fit all tasks of users' files together and save the model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from sharedspan.cli import errors, options, output
from sharedspan.estimators import ESTIMATORS, estimator_class
from sharedspan.progress import progress_bar

# NewTaskRegressor needs a fitted model: `sharedspan adapt` uses it.
FITTED_TO_TABLES = [name for name in ESTIMATORS if name != "NewTaskRegressor"]
# Options that estimators take.
PARAMETERS = ("rank", "solver", "noise", "max_iter", "engine", "varying")
FAMILIES = (
    "auto", "gaussian", "binomial", "probit", "poisson", "negative_binomial", "student_t", "huber"
)  # fmt: skip
REASONS = {  # why a family is chosen
    "gaussian": "the target is neither 0/1 nor counts",
    "binomial": "every value of the target is 0 or 1, so that predictions are probabilities",
    "negative_binomial": "the target holds counts, so that predictions are mean counts",
}


@click.command("fit")
@click.argument("tables", nargs=-1, required=True, metavar="TABLE... [FORMULA]")
@options.task_of_fit
@options.target_of_fit
@options.drop
@options.columns
@options.table_text
@options.choice(
    "--estimator",
    FITTED_TO_TABLES,
    "AdaptiveSpanRegressor",
    "Estimator to fit; `sharedspan compare` recommends one for your table.  One of "
    f"{', '.join(FITTED_TO_TABLES)}.  [default: AdaptiveSpanRegressor]",
)
@options.choice(
    "--family",
    FAMILIES,
    "auto",
    "Distribution of the target: gaussian, binomial or probit (classes 0 and 1), "
    "poisson or negative_binomial (counts), student_t or huber (numbers with outliers).  [default: "
    "auto, chosen from the values of the target]",
)
@options.repeatable(
    "--varying",
    "COL",
    "Column whose effect differs between tasks",
    "chosen from the data",
)
@click.option("--ml", is_flag=True, help="Fit a formula by maximum likelihood instead of REML.")
@click.option(
    "--weights",
    metavar="COL",
    help="Only with a FORMULA: column of weights; the noise variance of a row is divided by its "
    "weight.",
)
@click.option(
    "--rank",
    metavar="K",
    help="Dimension of the shared span, or the method that chooses it: auto, evidence (marginal "
    "likelihood) or threshold (singular values above the noise).",
)
@click.option(
    "--solver",
    metavar="NAME",
    help="Algorithm of the fit, such as tpgd, which is that of Ding, Du and Fang (2026).  "
    "[default: auto, for estimators that have several]",
)
@click.option(
    "--noise-per-task",
    "noise",
    flag_value="per_task",
    help="Estimate a noise level for each task instead of one for all tasks.",
)
@click.option(
    "--max-iter", type=int, metavar="N", help="Maximum number of iterations of the solver."
)
@options.seed("the fit")
@click.option("--memory-limit", metavar="SIZE", help="Maximum memory to use, such as 2GB.")
@click.option(
    "--checkpoint",
    metavar="FILE",
    help="Save the state of a long fit to this file, with --estimator SharedSpanRegressor.",
)
@click.option("--resume", metavar="FILE", help="Continue a killed fit from this checkpoint.")
@click.option(
    "--engine",
    metavar="ADDRESS",
    help="Fit on the Dask cluster of this scheduler, such as tcp://host:8786.",
)
@click.option(
    "--coefficients",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a table of the coefficients too: a .csv or .parquet file.",
)
@options.json_output
@options.out(
    "Where to save the model, usually a .span file.  [required without FORMULA]", required=False
)
def fit_command(
    tables: tuple[str, ...],
    estimator: str,
    family: str,
    seed: int,
    coefficients: Path | None,
    as_json: bool,
    out: Path | None,
    **given: Any,
) -> None:
    """Fit all tasks of your files together, and save the model.

    TABLE is a CSV, Parquet or Excel file, a folder of them, or a pattern in quotes; the files
    together may be larger than memory. All columns except task, target and dropped ones are
    features; text becomes a factor and dates become days. What the fit learns about the columns,
    such as levels and means, is saved with the model. During the fit, sorted rows take space in the
    folder named by the environment variable TMPDIR.

    By default the model is AdaptiveSpanRegressor, a mixed model that finds its own rank. For a
    target of two values, such as 0 and 1 or N and Y, the model predicts probabilities, and for a
    target of counts it predicts mean counts; --family overrides this choice.

    With a FORMULA in the notation of lme4, such as "math ~ ses + (1 + ses | school)", the command
    fits the model that the formula describes and prints its summary. The table must then fit into
    memory, the family is gaussian unless given, and no levels are pooled unless --rare is given.

    Example: sharedspan fit "sales/*.parquet" --task shop --target units -o sales.span
    """
    with errors.one_line_errors(out):
        formula = next(filter(options.is_formula, tables), None)
        if formula is not None:
            from sharedspan.cli.formula import fit_formula

            given |= {"estimator": estimator, "family": family, "coefficients": coefficients}
            tables = tuple(each for each in tables if each is not formula)
            fit_formula(formula, tables, out, as_json, given)
            return
        options.require_task_and_target(given)
        if out is None:
            raise options.missing_option("-o")
        if given.pop("ml") or given.pop("weights") is not None:
            raise ValueError(
                'A formula is fitted by --ml and with --weights: add one, such as "math ~ ses + '
                '(1 + ses | school)".'
            )
        errors.check_model_output(out, tables)
        errors.check_output(coefficients, ".csv", ".parquet", inputs=[out], tables=tables)
        columns = options.columns_given(given)
        given["varying"] = list(given["varying"]) or None
        given = {name: value for name, value in given.items() if value is not None}
        chosen, notes = _choose_family(estimator, family, tables, given, columns)
        model = _new_model(estimator, seed, given | chosen | {"columns": columns})
        reading = {name: value for name, value in given.items() if name not in PARAMETERS}
        result = fit_and_save(model, out, coefficients, path=tables, **reading)
    data = [part for table in tables for part in ("--data", table)] + options.table_text_typed()
    page = str(out.with_suffix(".html"))
    report = shlex.join(["sharedspan", "report", str(out), *data, "-o", page])
    echo_fit(result | {"notes": notes + result["notes"]}, as_json, f"Next: {report}")


def _choose_family(
    estimator: str, family: str, tables: tuple[str, ...], given: dict[str, Any], columns: Any
) -> tuple[dict[str, str], list[str]]:
    """The parameter ``family`` of an estimator that has it, and sentences about the choice."""
    from sharedspan.diagnosis.advice import advice_on_target

    kind: Any = estimator_class(estimator)
    own = "binomial" if hasattr(kind, "predict_proba") else "gaussian"
    has_families = "family" in kind().get_params()
    if family != "auto":
        if not has_families and family != own:
            raise ValueError(
                f"{estimator} only supports {own} responses: leave --family out, or fit "
                "AdaptiveSpanRegressor, which has other families."
            )
        if family != "gaussian" and "noise" in given:
            raise ValueError(
                f"--noise-per-task is only available for Gaussian responses: leave it or --family "
                f"{family} out."
            )
        return ({"family": family} if has_families else {}), []
    looks_like, why = family_of_column(tables, given["target"], columns)
    if has_families and "engine" not in given:
        if looks_like != "gaussian" and "noise" in given:
            raise ValueError(
                f"The target looks {looks_like}, but --noise-per-task is only available for "
                "Gaussian responses: leave it out, or add --family gaussian."
            )
        return {"family": looks_like}, [why]
    advice = advice_on_target(looks_like, estimator) if own == "gaussian" else None
    return {}, [] if advice is None else [advice]


def family_of_column(tables: tuple[str, ...], target: str, columns: Any) -> tuple[str, str]:
    """The family that the target of files looks like from its range, and why, in a sentence."""
    import numpy as np

    from sharedspan.families import suggested_family
    from sharedspan.inputs.matching_columns import range_of_column

    found, family = range_of_column(tables, target, columns), "gaussian"
    if found is not None and found.is_whole:
        family = suggested_family(np.array([found.least, found.largest]))
    reason = REASONS[family]
    if found is not None and found.classes:
        zero, one = found.classes
        reason = f"{target} is {one} or {zero}, so that predictions are probabilities of {one!r}"
    return family, f"Family: {family}, because {reason}; --family overrides this."


def _new_model(estimator: str, seed: int, given: dict[str, Any]) -> Any:
    """The estimator with the given parameters; raise if it does not have one of them."""
    from inspect import signature

    kind: Any = estimator_class(estimator)
    known = kind().get_params()
    for name in (*PARAMETERS, "checkpoint", "resume"):
        if name in given and name not in known and name not in signature(kind.fit).parameters:
            option = "noise-per-task" if name == "noise" else name.replace("_", "-")
            other = ", or add --estimator SharedSpanRegressor" * (
                estimator != "SharedSpanRegressor"
            )
            raise ValueError(f"{estimator} has no {name} parameter: leave --{option} out{other}.")
    parameters = {"random_state": seed} | given
    if str(given.get("rank")).isdigit():
        parameters["rank"] = int(given["rank"])
    return kind(**{name: value for name, value in parameters.items() if name in known})


def fit_and_save(
    model: Any, out: Path, coefficients: Path | None = None, **reading: Any
) -> dict[str, Any]:
    """Call ``fit_file`` with the arguments ``reading``, and save the model to ``out``.

    The result is printed by ``echo_fit``. A table of coefficients is written to ``coefficients``.
    """
    import time

    import numpy as np

    from sharedspan.estimators.saturation import saturation_notes
    from sharedspan.estimators.summaries import rows_left_out
    from sharedspan.inputs.classes import counted

    n_read = 0

    def count_rows(stage: str, done: float, total: float) -> None:
        nonlocal n_read
        if stage == "reading":
            n_read = int(total)
        progress(stage, done, total)

    began = time.perf_counter()
    with output.collected_warnings() as messages, progress_bar() as progress:
        model.fit_file(**reading, progress=count_rows)
        if coefficients is not None:
            with errors.write_errors(coefficients):
                _write_coefficients(model, coefficients)
        model.save(out)
    rank, noise = model.fitted_span.rank, model.fitted_span.noise_variance
    classes = model.fitted_span.extra["columns"].classes
    return {
        "estimator": type(model).__name__,
        "family": model.response_family().name,
        "n_tasks": len(model.tasks_),
        "n_rows": n_read - model.n_rows_dropped_ if n_read else None,  # unknown on a cluster
        "n_rows_dropped": model.n_rows_dropped_,
        "n_features": len(model.coef_names_),
        "rank": None if rank is None else int(rank),
        "noise": None if noise is None or np.isnan(noise).any() else float(noise.mean() ** 0.5),
        "seconds": round(time.perf_counter() - began, 3),
        "classes": list(classes),
        "notes": [*counted(classes), *saturation_notes(model), *rows_left_out(model)],
        "warnings": messages,
        "coefficients": coefficients,
        "out": out,
    }


def echo_fit(result: dict[str, Any], as_json: bool, *more: str) -> None:
    """Print the result of ``fit_and_save``, followed by more lines."""
    from sharedspan.diagnosis.text import count

    parts = [count(result["n_tasks"], "task"), count(result["n_features"], "feature")]
    if result["n_rows"] is not None:
        parts.insert(1, count(result["n_rows"], "row"))
    if result["rank"] is not None:
        parts.append(f"rank {result['rank']}")
    if result["noise"] is not None:
        parts.append(f"noise {result['noise']:.3g}")
    lines = [f"{result['estimator']}: {', '.join(parts)}; {result['seconds']:.1f} seconds"]
    lines += result["notes"]
    if result["coefficients"] is not None:
        lines.append(f"Coefficients: {result['coefficients']}")
    lines += [f"Model: {result['out']}", *more]
    output.echo_result(result, lines, as_json=as_json, warnings=result["warnings"])


def _write_coefficients(model: Any, out: Path) -> None:
    """Write a table with a row for each task: its label, intercept and coefficients."""
    import pyarrow as pa

    from sharedspan.persistence.atomic_write import atomic_table

    task, names = model.fitted_span.extra["columns"].task, list(model.coef_names_)
    intercept = "intercept" if "intercept" not in (task, *names) else "(intercept)"
    numbers = model.tasks_.dtype.kind in "iuf"
    labels = model.tasks_ if numbers else pa.array(map(str, model.tasks_.tolist()))
    with atomic_table(out) as write:
        write([labels, model.intercept_, *model.coef_.T], [task, intercept, *names])
