"""Fingerprints, which identify fits by their settings, features, tasks and data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sharedspan.objective import Objective
from sharedspan.persistence.container import KINDS, Tree, as_python_scalar
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.rows import Statistics

TOLERANCE = 1e-9  # relative: another order of summation changes less, other rows more


@dataclass(frozen=True)
class Fingerprint:
    """Settings, features, tasks and data, which must be the same when a fit is resumed.

    The numbers are sums over the rows of each task. Their last digits depend on the order of
    summation, so they may differ by 1e-9 of the largest number in the task's row: a number that may
    cancel to nearly zero needs its scale beside it.
    """

    settings: Mapping[str, Any]  # values that JSON can hold; compared exactly
    labels: Sequence[Any]  # (T,) of the tasks, in order; compared by type and ``repr``
    names: Sequence[str]  # (d,) of the features
    numbers: Mapping[str, np.ndarray]  # (T,) or (T, m) each

    def __post_init__(self) -> None:
        labels = [
            as_python_scalar(a) if isinstance(a, np.generic) and a.dtype.kind in KINDS else a
            for a in self.labels
        ]
        object.__setattr__(self, "labels", labels)

    @cached_property
    def tree(self) -> dict[str, Tree]:
        """The fingerprint as a checkpoint stores it, with a hash of each label."""
        texts = (f"{type(label).__name__} {label!r}" for label in self.labels)
        digests = (hashlib.sha256(text.encode("utf-8", "surrogatepass")) for text in texts)
        return {
            "settings": json.loads(json.dumps(dict(self.settings), default=as_python_scalar)),
            "names": [str(name) for name in self.names],
            "labels": np.frombuffer(b"".join(each.digest()[:8] for each in digests), "<u8"),
            "numbers": {name: np.asarray(a, float) for name, a in self.numbers.items()},
        }

    def difference(self, saved: Mapping[str, Tree]) -> str | None:
        """A description of the difference from the ``tree`` of another fit, if there is one."""
        return (
            _changed_settings(saved["settings"], self.tree["settings"])
            or _changed_names(saved["names"], self.tree["names"])
            or self._changed_tasks(saved["labels"])
            or self._changed_rows(saved["numbers"])
        )

    def _changed_tasks(self, then: np.ndarray) -> str | None:
        now = self.tree["labels"]
        if np.array_equal(then, now):
            return None
        new, n_gone = np.flatnonzero(~np.isin(now, then)), np.sum(~np.isin(then, now))
        changes = [f"{len(new)} new, such as {self.labels[new[0]]!r}"] if len(new) else []
        changes += [f"{n_gone} missing"] if n_gone else []
        return "the tasks: " + (", ".join(changes) or "in another order")

    def _changed_rows(self, then: Mapping[str, np.ndarray]) -> str | None:
        now, T = self.tree["numbers"], len(self.labels)
        if [(name, now[name].shape) for name in now] != [(name, then[name].shape) for name in then]:
            return "the data: the checkpoint summarizes them in another way"
        changed = np.zeros(T, dtype=bool)
        for name, numbers in now.items():
            a, b = numbers.reshape(T, -1), then[name].reshape(T, -1)
            scale = np.maximum(np.abs(a), np.abs(b)).max(axis=1, initial=0.0)
            changed |= ~(np.abs(a - b).max(axis=1, initial=0.0) <= TOLERANCE * scale)
        if not changed.any():
            return None
        count, first = int(changed.sum()), self.labels[int(np.argmax(changed))]
        return f"the data: other rows in {count} task{'s' * (count > 1)}, such as {first!r}"


def _changed_settings(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    def text(settings: Mapping[str, Any], name: str) -> str:  # equal for NaN, not for 1 and True
        if name not in settings:
            return f"no {name}"
        return f"{name}={json.loads(json.dumps(settings[name], sort_keys=True))!r}"

    pairs = [(text(then, name), text(now, name)) for name in dict.fromkeys([*then, *now])]
    return "; ".join(f"{old} then, {new} now" for old, new in pairs if old != new) or None


def _changed_names(then: Sequence[str], now: Sequence[str]) -> str | None:
    if len(then) != len(now):
        return f"the features: {len(then)} then, {len(now)} now"
    pairs = (pair for pair in zip(then, now, strict=True) if pair[0] != pair[1])
    return next((f"the features: {old!r} then, {new!r} now" for old, new in pairs), None)


def data_numbers(
    objective: Objective, statistics: Statistics, canonical: Canonical
) -> dict[str, np.ndarray]:
    """Numbers for a ``Fingerprint``, each beside its scale, which any changed row changes.

    Objective and statistics are canonical, but the numbers use a fixed random combination x'p of
    the features before whitening, because whitened axes may change sign. Takes two passes.
    """
    units, P, T = canonical.units, canonical.P, objective.n_tasks
    inverse = np.eye(len(units.scale)) if P is None else np.linalg.pinv(P)  # (d', d)
    # Each feature is divided by its spread, or a large one would hide changes of the others. The
    # spread is rounded to a power of two, which a changed row leaves alone.
    variance = np.maximum(statistics.variances(), 0.0) @ inverse**2
    power = np.round(np.log2(np.where(variance > 0, variance, 1.0)) / 2)
    p = (np.random.default_rng(0).standard_normal(len(power)) * 2.0**-power)[:, None]
    q = inverse @ p  # so that x'Pq = x'p
    zeros, ones = np.zeros((1, T)), np.ones((1, T))
    at_zero, at_one = (
        np.asarray(objective.gradients(q, objective.to_device(w))[2])[0] for w in (zeros, ones)
    )
    n = np.maximum(objective.n, np.finfo(float).tiny)
    size = np.sqrt(objective.squares(0 * q, zeros) / n)  # spread of y within the task
    spread = np.sqrt(np.maximum(at_one - at_zero, 0.0))  # spread of x'p
    level = statistics.mean @ q[:, 0] + (units.origin * units.scale) @ canonical.widen(q)
    return {
        "rows": objective.n,
        "y": np.column_stack([statistics.y_mean, size]),
        "x": np.column_stack([level, spread]),
        "xy": np.column_stack([at_zero / objective.response, spread * size]),
    }
