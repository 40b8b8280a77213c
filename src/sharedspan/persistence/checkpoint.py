"""Checkpoints: files with the state of a long fit, from which it can be resumed."""

from __future__ import annotations

import math
import os
import pathlib
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from sharedspan.objective import build_objective
from sharedspan.persistence.codec import require_shapes
from sharedspan.persistence.container import Path, Tree, TreeFormat
from sharedspan.persistence.fingerprint import Fingerprint, data_numbers
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.task_statistics import TaskStatistics

WRITING_SHARE = 0.05  # largest share of the time of a fit that is spent on writing


class CheckpointError(ValueError):
    """A file that is not a checkpoint, is damaged, or belongs to another fit."""


CHECKPOINT_FORMAT = TreeFormat(
    "checkpoint", 1, CheckpointError, "give another checkpoint, or fit without one"
)


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file."""

    path: Path
    fingerprint: Mapping[str, Tree]
    caller: Tree  # state of the caller of the run
    run: Mapping[str, Tree]  # state of the run

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read a checkpoint from a file; raises ``CheckpointError`` if the file cannot be read."""
        tree = CHECKPOINT_FORMAT.read(path)
        with CHECKPOINT_FORMAT.interpreting(path):
            return cls(path, tree["fingerprint"], tree["caller"], tree["run"])

    def require(self, fingerprint: Fingerprint) -> None:
        """Raise a ``CheckpointError`` if the checkpoint belongs to other data or settings."""
        with CHECKPOINT_FORMAT.interpreting(self.path):
            difference = fingerprint.difference(self.fingerprint)
        if difference is not None:
            raise CheckpointError(
                f"{str(self.path)!r} is a checkpoint of another fit ({difference}): use the data "
                "and settings of that fit, or fit without the checkpoint."
            )

    @property
    def has_ended(self) -> bool:
        """Whether the fit is complete, so that its checkpoint may be replaced."""
        from sharedspan.solvers.state import PLANNED, STALLED

        with CHECKPOINT_FORMAT.interpreting(self.path):
            settings, run = self.fingerprint["settings"], self.run
            all_done = settings["tol"] == 0 and run["iteration"] >= settings["max_iter"]
            done = run["converged"] or run["ending"] in (PLANNED, STALLED) or all_done
            return bool(self.caller["last"] and done)


@dataclass(frozen=True)
class CheckpointOptions:
    """The options ``checkpoint``, ``resume`` and ``checkpoint_seconds`` of a fit, validated."""

    path: pathlib.Path  # the file to write
    saved: Checkpoint | None  # the state to resume from
    seconds: float  # between two checkpoints
    settings: dict[str, Any]  # must be the same when a fit is resumed

    @classmethod
    def of(
        cls, checkpoint: Any, resume: Any, seconds: float, settings: dict[str, Any]
    ) -> CheckpointOptions:
        """The validated options.

        A resumed fit continues to write to its own file unless another is given. The checkpoint of
        another fit that is not complete is never replaced.
        """
        path = _as_path("checkpoint", resume if checkpoint is None else checkpoint)
        saved = None if resume is None else Checkpoint.read(_as_path("resume", resume))
        CHECKPOINT_FORMAT.require_writable(path)
        own = saved is not None and path.exists() and path.samefile(saved.path)
        if path.exists() and not own and not Checkpoint.read(path).has_ended:
            raise CheckpointError(
                f"checkpoint={str(path)!r} belongs to an unfinished fit: continue it with "
                f"resume={str(path)!r}, give another path, or delete the file first."
            )
        return cls(path, saved, seconds, settings)

    def saved_map(self, statistics: TaskStatistics) -> np.ndarray | None:
        """The map P (d, d') of the features that the saved factors refer to; None for a new fit.

        Axes may have other signs on another machine, so a resumed fit uses the saved ones.

        Raises if the checkpoint has other settings, features or tasks. ``checkpoints`` compares
        the data once they are canonical.
        """
        if self.saved is None:
            return None
        with CHECKPOINT_FORMAT.interpreting(self.saved.path):
            numbers, P = self.saved.fingerprint["numbers"], self.saved.caller["P"]
        self.saved.require(Fingerprint(self.settings, statistics.labels, statistics.names, numbers))
        with CHECKPOINT_FORMAT.interpreting(self.saved.path):
            require_shapes({"P": P}, {"P": "dp"}, {"d": len(statistics.names)})
            if P is not None and not np.isfinite(P).all():
                raise ValueError("The map of the features is not finite.")
        return P

    def checkpoints(
        self,
        statistics: TaskStatistics,
        canonical: Canonical,
        rng: np.random.Generator,
    ) -> Checkpoints:
        """The checkpoints of a fit to canonical statistics; raises if ``saved`` has other data."""
        objective = build_objective(statistics.statistics)
        numbers = data_numbers(objective, statistics.statistics, canonical)
        fingerprint = Fingerprint(self.settings, statistics.labels, statistics.names, numbers)
        return Checkpoints(self.path, fingerprint, rng, seconds=self.seconds, saved=self.saved)


def _as_path(name: str, value: Any) -> pathlib.Path:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name}={value!r} must be the path of a file or None.")
    return pathlib.Path(value)


@dataclass
class Checkpoints:
    """The checkpoints of one fit, which has one run of a solver or several."""

    path: Path | None  # None to write nothing
    fingerprint: Fingerprint
    rng: np.random.Generator  # generator of the runs, saved and restored
    _: KW_ONLY
    seconds: float = 60.0  # between two writes; more if writing exceeds ``WRITING_SHARE``
    saved: Checkpoint | None = None  # the state to resume from; must belong to this fit

    def __post_init__(self) -> None:
        if self.saved is not None:
            self.saved.require(self.fingerprint)
        # State of the caller, such as the number of the run, set before each run.
        self.caller: Tree = None if self.saved is None else self.saved.caller
        self._read = None if self.saved is None else self.saved.path
        self._start: Tree = None  # the generator's state when the run began
        self._pending: dict[str, Tree] | None = None  # the last state, if it is not written yet
        self._has_warned = False
        self._written, self._pause = -math.inf, self.seconds

    @contextmanager
    def interpreting(self) -> Iterator[None]:
        """Report any error in this context as damage of the file that the fit resumes from."""
        if self._read is None:
            yield
            return
        with CHECKPOINT_FORMAT.interpreting(self._read):
            yield

    def begin(self) -> Checkpoint | None:
        """Begin a run; returns the saved state, which only the first run has, or None.

        The generator is set to its state at the beginning of the saved run.
        """
        saved, self.saved = self.saved, None
        if saved is not None:
            self.set_rng(saved, "start")
        self._start = self.rng.bit_generator.state
        return saved

    def set_rng(self, saved: Checkpoint, when: str) -> None:
        """Set the generator to its state at the "start" of a saved run, or "now", at its end."""
        try:
            self.rng.bit_generator.state = saved.run["rng"][when]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(
                f"{str(saved.path)!r} was saved with another kind of random generator than "
                f"{type(self.rng.bit_generator).__name__}: resume with a generator of that kind."
            ) from error

    def update(self, state: Mapping[str, Tree], now: bool = False) -> None:
        """Store the state of a run, and write it if a write is due, or ``now``.

        The state is not copied, so it must not be changed. A function in it is called when the
        state is written.
        """
        rng = {"start": self._start, "now": self.rng.bit_generator.state}
        self._pending = {"run": {**state, "rng": rng}, "caller": self.caller}
        if now or time.monotonic() - self._written >= self._pause:
            self.flush()

    def flush(self) -> None:
        """Write the last state, if it is not written yet.

        The first write of a fit raises an OSError if it fails. Later ones warn, once, because hours
        of work may be lost otherwise and the next write may succeed.
        """
        if self._pending is None or self.path is None:
            return
        began = time.monotonic()
        try:
            tree = {"fingerprint": self.fingerprint.tree, **self._pending}
            CHECKPOINT_FORMAT.write(self.path, tree)
        except Exception as error:
            if self._written == -math.inf:
                self._pending = None
                raise
            self._warn(error)
        self._written = time.monotonic()
        self._pause = max(self.seconds, (self._written - began) / WRITING_SHARE)
        self._pending = None

    def _warn(self, error: Exception) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        reason = str(error) if isinstance(error, OSError) else f"{str(self.path)!r}: {error!r}"
        warnings.warn(
            f"A checkpoint was not written; the fit continues and tries again later. {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
