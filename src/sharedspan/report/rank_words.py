"""Why the model has the rank that it has, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sharedspan.diagnosis.text import count, listed, number
from sharedspan.report.facts import Facts
from sharedspan.report.sentences import on_all_slopes


def rank_reason(facts: Facts) -> Iterator[str]:
    """Why the model has the rank that it has."""
    model, rank = facts.model, facts.diagnosis.rank
    path = getattr(model, "rank_path_", None)
    tried = getattr(model, "candidates_", None)
    if on_all_slopes(facts):
        yield "There is no rank: what was given is a prior on all slopes, not a span."
    elif rank is None:
        yield f"{facts.kind} has no span, and so no rank."
    elif facts.groups is not None and facts.groups[0] == "cluster":
        yield f"The span is that of {count(int(facts.groups[1].max()), 'centre')} of tasks."
    elif path is not None:
        yield from _path_reason(path)
    elif tried:
        yield from _candidates_reason(model, tried)
    elif facts.kind == "NewTaskRegressor":
        yield f"The span was given, with {count(rank, 'direction')}."
    elif isinstance(getattr(model, "rank", None), str):
        yield f"The rank is {rank}: there was nothing to choose."
    else:
        yield f"The rank was given: {rank}."


def _path_reason(path: Any) -> Iterator[str]:
    if path.method == "auto":
        tied = [int(r) for r in path.ranks[path.difference <= path.standard_error]]
        yield "Ranks were compared by their error on held-out rows, in five folds within tasks."
        if tied == [path.rank]:
            yield f"Rank {path.rank} is better than all others by more than one standard error."
        else:
            yield (
                f"Ranks {listed([str(r) for r in tied])} are within one standard error of the "
                f"best; among these the rows are most probable under {path.rank} (by the marginal "
                "likelihood)."
            )
    elif path.method == "evidence":
        rest = path.difference[path.ranks != path.rank]
        yield (
            f"Of all ranks that were tried, the rows are most probable under {path.rank} (it has "
            "the largest marginal likelihood)."
        )
        if len(rest):
            factor = number(float(np.exp(min(rest.min(), 700.0))), 2)
            yield f"Under the next best they are less probable by a factor of {factor}."
    else:
        yield (
            f"The rank counts the directions of separate fits that stand out of the noise: "
            f"{count(path.rank, 'singular value')} of them above the threshold."
        )


def _candidates_reason(model: Any, tried: list[dict[str, Any]]) -> Iterator[str]:
    chosen = [row for row in tried if (row["slopes"], row["rank"]) == (model.slopes_, model.rank_)]
    others = [row for row in tried if row not in chosen]
    yield f"{count(len(tried), 'description')} of how tasks vary, from simple to rich, competed."
    if chosen and others:
        best = max(others, key=lambda row: row["score"])
        ahead = max(row["score"] for row in chosen) - best["score"]
        said = f"The one chosen has rank {model.rank_} and variances of the kind “{model.slopes_}”"
        if ahead > 0:
            said += (
                f"; the score of the next best, rank {best['rank']} and “{best['slopes']}”, is "
                f"{number(float(ahead), 2)} lower"
            )
        yield said + "."
    elif chosen:
        yield f"There was one to choose: rank {model.rank_}."
