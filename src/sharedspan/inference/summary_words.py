"""A summary as one paragraph of whole sentences, which say what the numbers say and no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sharedspan.inference.summary import Estimate, FixedTable, Summary, VarianceEntry
from sharedspan.inference.summary_names import shorten_middle, visible
from sharedspan.inference.summary_numbers import (
    MOST_DECIMALS,
    decimals_of,
    estimate_decimals,
    fixed_point,
    percent_text,
)

MOST_TOLD = 8  # effects of a kind
LONGEST_TOLD = 60  # characters of a name
INTERCEPTS = ("(Intercept)", "Intercept", "intercept")


def summary_words(summary: Summary) -> str:
    """The paragraph that ``Summary.in_words`` returns."""
    sentences = [_model_sentence(summary), *_fixed_sentences(summary), *_random_sentences(summary)]
    sentences += _share_sentences(summary)
    sentences += [visible(sentence) for sentence in (*summary.span, *summary.notes)]
    return " ".join(sentences)


def _model_sentence(summary: Summary) -> str:
    """What was fitted to what."""
    kind = _uncapitalised(summary.title)
    article = "An" if kind[:1].lower() in ("a", "e", "i", "o", "u") else "A"
    gaussian = summary.family.lower() in ("", "gaussian")
    method = _told(summary.method).replace(" (", ", ").rstrip(")")
    details = [method, "" if gaussian else f"{_told(summary.family)} family"]
    details.append(f"{_told(summary.link)} link" if _has_link(summary) else "")
    how = ", ".join(detail for detail in details if detail)
    counts = [
        f"{count} group{'s' * (count != 1)} ({_told(name)})" for name, count in summary.groups
    ]
    rows = "rows" if summary.n_rows is None else f"{summary.n_rows} rows"
    return (
        f"{article} {_told(kind)}{f' ({how})' if how else ''}"
        f"{f' of {_told(summary.response)}' if summary.response else ''} was fitted to "
        f"{rows}{f' in {_listed(counts)}' if counts else ''}."
    )


def _fixed_sentences(summary: Summary) -> Iterator[str]:
    """Estimates of the fixed effects, with their tests; the intercept is not tested."""
    table = summary.fixed
    if table is None or not table.names:
        return
    effects = [i for i, name in enumerate(table.names) if name not in INTERCEPTS]
    for i in sorted(set(range(len(table.names))) - set(effects)):
        yield f"The intercept is {_effect(table, i, summary.level, tested=False)}."
    for i in effects[:MOST_TOLD]:
        text = _effect(table, i, summary.level, tested=True)
        yield f"The effect of {_told(table.names[i])} is {text}."
    if len(effects) > MOST_TOLD:
        yield f"A further {len(effects) - MOST_TOLD} effects are in the table."
    if _has_link(summary):
        yield f"Effects are on the {_told(summary.link)} scale."


def _effect(table: FixedTable, i: int, level: float, *, tested: bool) -> str:
    """An estimate with its interval, test and p-value."""
    value = float(table.estimate[i])
    std = value if table.std_error is None else float(table.std_error[i])
    decimals = decimals_of(std or value, 3)
    parts = []
    if table.low is not None and table.high is not None:
        low, high = float(table.low[i]), float(table.high[i])
        parts.append(_interval_words(low, high, decimals, level))
    if tested and table.statistic is not None and table.p_value is not None:
        letter = "z" if table.degrees is None else f"t{_degrees_words(float(table.degrees[i]))}"
        parts.append(f"{letter} = {fixed_point(float(table.statistic[i]), 2)}")
        parts.append(_p_words(float(table.p_value[i])))
    return _number(value, decimals) + (f" ({', '.join(parts)})" if parts else "")


def _random_sentences(summary: Summary) -> Iterator[str]:
    """Standard deviations and correlations of the random effects, and the noise."""
    for entry in summary.variances:
        yield _entry_sentence(entry, summary.level)
        if entry.note:
            yield f"Covariance of {_told(entry.group)}: {visible(entry.note)}."
    named = [("residual standard deviation", summary.sigma)] if summary.sigma is not None else []
    for name, estimate in (*named, *summary.family_parameters):
        text = _estimate_words(estimate, estimate_decimals(estimate, 3), summary.level)
        yield f"The {_told(_uncapitalised(name))} is {text}."


def _entry_sentence(entry: VarianceEntry, level: float) -> str:
    """How much effects vary between groups, and how they go together."""
    group, count = _told(entry.group), len(entry.names)
    if count > MOST_TOLD:
        return f"Between groups of {group}, {count} effects vary."
    estimates = [entry.std_estimate(i) for i in range(count)]
    texts = [_estimate_words(e, estimate_decimals(e, 3), level) for e in estimates]
    spreads = [f"{text} for {_told(name)}" for name, text in zip(entry.names, texts, strict=True)]
    # The correlation of an effect that does not vary is not a number.
    pairs = (entry.correlation_estimate(i, j) for i, j in entry.pairs())
    correlations = [estimate for estimate in pairs if np.isfinite(estimate.value)]
    together = ""
    if len(correlations) == 1:
        together = f", and their correlation is {_estimate_words(correlations[0], 2, level)}"
    elif correlations:
        values = np.array([estimate.value for estimate in correlations])
        low, high = (fixed_point(float(end), 2) for end in (values.min(), values.max()))
        together = f", and their correlations are between {low} and {high}"
    spread = _listed(spreads)
    return f"Between groups of {group}, the standard deviation is {spread}{together}."


def _share_sentences(summary: Summary) -> Iterator[str]:
    if summary.icc is not None:
        yield f"The intraclass correlation is {fixed_point(summary.icc, 2)}."
    shares = (("marginal", summary.r2_marginal), ("conditional", summary.r2_conditional))
    known = [f"the {name} R2 is {fixed_point(r2, 2)}" for name, r2 in shares if r2 is not None]
    if known:
        text = _listed(known)
        yield f"{text[:1].upper()}{text[1:]}."


def _estimate_words(estimate: Estimate, decimals: int, level: float) -> str:
    """An estimate with its interval in brackets."""
    text = _number(estimate.value, decimals)
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} ({_interval_words(estimate.low, estimate.high, decimals, level)})"


def _interval_words(low: float, high: float, decimals: int, level: float) -> str:
    return f"{percent_text(level)} interval {_number(low, decimals)} to {_number(high, decimals)}"


def _number(value: float, decimals: int) -> str:
    return fixed_point(value, decimals) if decimals <= MOST_DECIMALS else f"{value:.2e}"


def _degrees_words(degrees: float) -> str:
    """Degrees of freedom in brackets; none if there are infinitely many."""
    if not np.isfinite(degrees):
        return ""
    return f"({fixed_point(degrees, 0 if abs(degrees - round(degrees)) < 0.05 else 1)})"


def _p_words(p: float) -> str:
    if p < 0.001:
        return "p < .001"
    return "p > .999" if p > 0.9995 else f"p = {fixed_point(p, 3).removeprefix('0')}"


def _has_link(summary: Summary) -> bool:
    return summary.link not in ("", "identity")


def _told(name: str) -> str:
    return shorten_middle(visible(name), LONGEST_TOLD)


def _uncapitalised(text: str) -> str:
    """Text as it stands within a sentence; names of classes and acronyms do not change."""
    first, space, rest = text.partition(" ")
    return (first.lower() if first[1:].islower() else first) + space + rest


def _listed(parts: Sequence[str]) -> str:
    """Parts with commas, and "and" before the last one."""
    return " and ".join([*([", ".join(parts[:-1])] if parts[1:] else []), *parts[-1:]])
