"""The parts of a summary in the order in which they are shown.

Every rendering shows the same parts. Names and texts come from users' tables and may contain
anything; renderings escape and shorten them.
"""

from __future__ import annotations

from collections.abc import Iterator

from sharedspan.inference.summary import Summary
from sharedspan.inference.summary_names import shorten_middle, visible
from sharedspan.inference.summary_numbers import estimate_text, fixed_point, format_capped
from sharedspan.inference.summary_tables import (
    Lines,
    SummaryTable,
    fixed_effect_tables,
    random_effect_tables,
)

LONGEST_GROUP = 40  # characters of a name
QUANTILES = ("Min", "1Q", "Median", "3Q", "Max")


def summary_sections(summary: Summary) -> Iterator[Lines | SummaryTable]:
    """All parts of a summary that the model has."""
    yield Lines("", tuple(_head(summary)))
    yield from _fit(summary)
    yield from random_effect_tables(summary)
    yield Lines("", tuple(_sizes(summary)))
    yield from fixed_effect_tables(summary)
    for title, sentences in (("Span", summary.span), ("Notes", summary.notes)):
        if sentences:
            yield Lines(title, tuple(("", sentence) for sentence in sentences))


def summary_title(summary: Summary) -> str:
    """What the model is and how it was fitted, as a sentence."""
    by = f" fit by {summary.method}" if summary.method else ""
    tested = summary.fixed is not None and summary.fixed.degrees is not None
    tests = " t-tests use Satterthwaite's method." if tested else ""
    return f"{summary.title}{by}.{tests}"


def _head(summary: Summary) -> Iterator[tuple[str, str]]:
    """Title, formula, call, family and further facts."""
    yield "", summary_title(summary)
    for label, text in (("Formula", summary.formula), ("Call", summary.call)):
        if text:
            yield label, text
    if summary.family:
        yield "Family", summary.family + (f" ({summary.link})" if summary.link else "")
    yield from summary.facts


def _fit(summary: Summary) -> Iterator[Lines | SummaryTable]:
    """Measures of the likelihood with one decimal, as in R, and quantiles of residuals."""
    restricted, criterion = summary.method == "REML", summary.criterion
    if restricted and criterion is not None:
        yield Lines("", (("REML criterion at convergence", fixed_point(criterion, 1)),))
    measures = {"AIC": summary.aic, "BIC": summary.bic, "logLik": summary.log_likelihood}
    if not restricted:
        measures["-2*log(L)"] = criterion
    known = {name: fixed_point(value, 1) for name, value in measures.items() if value is not None}
    if known and summary.residual_degrees is not None:
        known["df.resid"] = str(summary.residual_degrees)
    if known:
        yield SummaryTable("", tuple(known), (tuple(known.values()),), labels=0)
    if summary.residual_quantiles is not None:
        cells = tuple(format_capped(summary.residual_quantiles, 4))
        yield SummaryTable("Scaled residuals", QUANTILES, (cells,), labels=0)


def _sizes(summary: Summary) -> Iterator[tuple[str, str]]:
    """Rows and groups, parameters of the family, and shares of the variance."""
    groups = "; ".join(
        f"{shorten_middle(visible(name), LONGEST_GROUP)}, {count}" for name, count in summary.groups
    )
    rows = "unknown" if summary.n_rows is None else f"{summary.n_rows}"
    yield "Number of obs", rows + (f", groups: {groups}" if groups else "")
    for name, estimate in summary.family_parameters:
        yield name, estimate_text(estimate, summary.level)
    if summary.icc is not None:
        yield "ICC", fixed_point(summary.icc, 3)
    shares = (("marginal", summary.r2_marginal), ("conditional", summary.r2_conditional))
    known = [f"{fixed_point(share, 3)} {name}" for name, share in shares if share is not None]
    if known:
        yield "R2", ", ".join(known)
