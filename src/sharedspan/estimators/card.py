"""The card that a notebook shows of a fitted model: what it is, its sizes, gain and warnings.

It reads what the model holds. Standard errors, inference and predictions are not computed for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.inference import fit_notes
from sharedspan.estimators.summaries import (
    LINKS,
    TITLES,
    convergence,
    directions_words,
    family_parameters,
    group_sizes,
    method_words,
    rows_left_out,
)
from sharedspan.inference.rank_selection import RankPath
from sharedspan.inference.summary import Estimate
from sharedspan.inference.summary_markup import sections_html
from sharedspan.inference.summary_numbers import estimate_text
from sharedspan.inference.summary_tables import Lines
from sharedspan.mixed_model.structures import Effects

if TYPE_CHECKING:
    from sharedspan.estimators.base import TaskEstimator

MOST_NAMED = 5  # names in a sentence
OUTLIER = 0.5  # probability from which a task is named
STYLE = (
    ".sharedspan-card{border:1px solid #8886;border-radius:4px;padding:.2em .8em;max-width:60em}"
    ".sharedspan-card p.fact{padding-left:6em;text-indent:-6em}"
    ".sharedspan-card p.fact b{display:inline-block;width:5.7em;text-indent:0;font-weight:normal;"
    "opacity:.7}"
)
CHOSEN_BY = {
    "auto": "chosen by the error on held-out rows",
    "evidence": "chosen by the evidence",
    "threshold": "the number of singular values above the noise",
}
STRUCTURE = {  # by ``slopes_``: what varies besides shared directions, and without them
    "zero": ("", "Coefficients do not differ between tasks."),
    "none": ("Intercepts also vary independently.", "Only intercepts differ between tasks."),
    "isotropic": (
        "Each slope also varies independently, all equally much.",
        "Slopes vary independently of each other, all equally much.",
    ),
    "diagonal": (
        "Each coefficient also varies independently.",
        "Coefficients vary independently of each other.",
    ),
    "full": ("", "Coefficients vary together, with an unrestricted covariance."),
}


def card_html(model: TaskEstimator) -> str:
    """The card of a fitted model as HTML."""
    facts = [*_facts(model), *(("Warning", sentence) for sentence in warning_words(model))]
    card = sections_html([Lines(title_words(model), tuple(facts))])
    return f'<div class="sharedspan-card">\n<style>{STYLE}</style>\n{card}\n</div>'


def _facts(model: TaskEstimator) -> Iterator[tuple[str, str]]:
    """Labels and texts of the card."""
    formula = _formula(model)
    yield ("Formula", formula) if formula else ("Model", repr(model))
    family = model.response_family().name
    if family != "gaussian":
        yield "Family", f"{family} ({LINKS.get(family, 'identity')} link)"
    if "classes_" in vars(model):
        yield "Classes", _listed([str(label) for label in model.classes_])
    yield "Data", size_words(model)
    if structure := " ".join(structure_words(model)):
        yield "Structure", structure
    if noise := noise_words(model):
        yield "Noise", noise
    for name, estimate in family_parameters(model):
        yield name.capitalize(), estimate_text(estimate, 0.95)
    if gain := gain_words(model):
        yield "Gain", gain


def _formula(model: TaskEstimator) -> str:
    """The formula that was fitted, if there is one."""
    effects = vars(model).get("slopes")
    return effects.formula if isinstance(effects, Effects) else ""


def title_words(model: TaskEstimator) -> str:
    """What kind of model it is."""
    if not _formula(model):
        return TITLES[model.shares]
    family = model.response_family()
    if family.name != "gaussian" and family.name not in LINKS:
        return "Mixed model with robust noise"
    kind = "Linear" if family.name == "gaussian" else "Generalized linear"
    return f"{kind} mixed model, fitted by {method_words(model)}"


def size_words(model: TaskEstimator) -> str:
    """Numbers of rows, tasks and features."""
    first = vars(model).get("estimators_", [model])[0]  # a model of each class has the same rows
    n_rows = vars(first).get("n_rows_")
    parts = [] if n_rows is None else [_count(n_rows, "row")]
    for i, (name, count) in enumerate(group_sizes(model)):
        noun = _count(count, "group" if i else "task")
        parts.append(noun if name == "task" else f"{noun} ({name})")
    return ", ".join([*parts, _count(len(model.coef_names_), "feature")])


def structure_words(model: TaskEstimator) -> Iterator[str]:
    """What the tasks share, in sentences."""
    if "estimators_" in vars(model):
        ranks = ", ".join(str(each.rank_) for each in model.estimators_)
        yield f"A model of each class against the others, of ranks {ranks}."
        return
    if model.shares == "slopes":
        levels = "; only intercepts differ" if model.fit_intercept else ""
        yield f"All tasks have the same slopes{levels}."
    elif model.shares == "nothing":
        yield "Each task has coefficients of its own, estimated only from its rows."
    labels = vars(model).get("labels_")
    if labels is not None:
        sizes = map(str, np.unique(labels, return_counts=True)[1])
        yield f"Tasks are near the centres of clusters of {_listed(sizes)} tasks."
        return
    span = directions_words(model)
    yield from span
    path = FittedSpan.of(model).rank_path
    if isinstance(path, RankPath):
        yield f"The rank is {CHOSEN_BY[path.method]}."
    besides, alone = STRUCTURE.get(vars(model).get("slopes_", ""), ("", ""))
    if sentence := besides if span else alone:
        yield sentence
    varying = getattr(model, "varying_", None)
    if varying is not None and 0 < len(varying) < len(model.coef_names_) and not _formula(model):
        yield f"Only slopes of {_listed(map(str, varying))} differ between tasks."


def noise_words(model: TaskEstimator) -> str:
    """The standard deviation of the noise, and how it differs between tasks."""
    variance = FittedSpan.of(model).noise_variance
    if variance is None or not np.isfinite(variance).any():
        return ""
    low, middle, high = np.sqrt(np.nanquantile(variance, [0.0, 0.5, 1.0]))
    if high <= low * (1 + 1e-9):
        return f"standard deviation {_number(middle)}"
    return (
        f"standard deviation {_number(middle)}, the median over tasks "
        f"({_number(low)} to {_number(high)})"
    )


def gain_words(model: TaskEstimator) -> str:
    """How much better the rows are described than by the other fits that were compared."""
    path = FittedSpan.of(model).rank_path
    if isinstance(path, RankPath) and path.method == "auto" and len(path.ranks) > 1:
        chosen = float(path.loss[path.ranks == path.rank][0])
        rest = [i for i in (0, -1) if path.ranks[i] != path.rank and path.loss[i] > 0]
        others = [
            f"{100 * (1 - np.sqrt(chosen / path.loss[i])):.2g} % below that of rank {path.ranks[i]}"
            for i in rest
        ]
        return f"root mean square error on held-out rows {' and '.join(others)}"
    tried = vars(model).get("candidates_", [])
    same = [row["log_likelihood"] for row in tried if not row["rank"] and row["slopes"] == "none"]
    kind = vars(model).get("slopes_"), vars(model).get("rank_")
    chosen_fits = [row for row in tried if (row["slopes"], row["rank"]) == kind]
    if not same or not chosen_fits or kind == ("none", 0):
        return ""
    best = max(chosen_fits, key=lambda row: row["score"])
    ahead = float(best["log_likelihood"] - max(same))
    return f"log likelihood {ahead:,.1f} above that with the same slopes in all tasks"


def warning_words(model: TaskEstimator) -> Iterator[str]:
    """What a reader must know before using the model, in sentences."""
    held = vars(model)
    if held.get("converged_") is False:
        yield convergence(model)
    yield from rows_left_out(model)
    variance = held.get("noise_variance_")
    if variance is not None and not (np.nan_to_num(variance) > 0).any():
        yield "No noise is left: the fit reproduces its rows, so its standard errors mean nothing."
    off = np.flatnonzero(held.get("outlier_probability_", np.zeros(0)) > OUTLIER)
    if len(off):
        named = _listed(str(model.tasks_[t]) for t in off)
        yield f"Outlier task{'s' * (len(off) > 1)}, unlike the others: {named}."
    if _formula(model) and "_retained_" in held:
        yield from fit_notes(model, held["_retained_"])


def _number(value: float) -> str:
    return estimate_text(Estimate(float(value)), 0.95)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _listed(names: Iterable[Any]) -> str:
    """Names for a sentence: the first few, then the number of the others."""
    names = list(names)
    if len(names) > MOST_NAMED + 1:
        names = [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED:,} more"]
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), *names[-1:]])
