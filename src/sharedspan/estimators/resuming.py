"""Long fits: where one keeps its checkpoints, and what it goes on from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.objective import build_objective
from sharedspan.persistence.checkpoint import FORMAT, Checkpoint, CheckpointError, Checkpoints
from sharedspan.persistence.fingerprint import Fingerprint, data_numbers
from sharedspan.solvers.state import PLANNED, STALLED
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.task_statistics import TaskStatistics


@dataclass(frozen=True)
class Resumption:
    """The files of a fit that can be resumed."""

    path: Path | None  # where checkpoints are written
    saved: Checkpoint | None  # what to go on from
    seconds: float  # between two checkpoints
    settings: dict[str, Any]  # what must not change between a fit and its continuation

    @classmethod
    def of(
        cls, checkpoint: Any, resume: Any, seconds: float, settings: dict[str, Any]
    ) -> Resumption:
        """The files that the user named.

        A resumed fit goes on writing to its own file unless it is given another. The checkpoint
        of a fit that has not come to its end is not overwritten.
        """
        path = _as_path("checkpoint", resume if checkpoint is None else checkpoint)
        saved = None if resume is None else Checkpoint.read(_as_path("resume", resume))
        FORMAT.require_writable(path)
        mine = saved is not None and path.exists() and path.samefile(saved.path)
        if path.exists() and not mine and not _has_ended(Checkpoint.read(path)):
            raise CheckpointError(
                f"{str(path)!r} is the checkpoint of a fit that has not come to its end: go on "
                f"from it with resume={str(path)!r}, give another path, or delete it first."
            )
        return cls(path, saved, seconds, settings)

    def saved_map(self, gathered: TaskStatistics) -> np.ndarray | None:
        """The map P of the features that the saved factors go with; None for a new fit.

        Axes may have other signs on another machine, so a continuation takes the saved ones.
        Raises where the checkpoint is of other settings, features or tasks. Data are looked at
        once they are canonical.
        """
        if self.saved is None:
            return None
        numbers = self.saved.fingerprint["numbers"]
        self.saved.require(Fingerprint(self.settings, gathered.labels, gathered.names, numbers))
        return self.saved.caller["P"]

    def checkpoints(
        self,
        gathered: TaskStatistics,
        canonical: Canonical,
        rng: np.random.Generator,
    ) -> Checkpoints:
        """The checkpoints of this fit; raises where the saved one is of other data."""
        statistics = gathered.statistics  # canonical by now
        numbers = data_numbers(build_objective(statistics), statistics, canonical)
        fingerprint = Fingerprint(self.settings, gathered.labels, gathered.names, numbers)
        return Checkpoints(self.path, fingerprint, rng=rng, seconds=self.seconds, saved=self.saved)


def _has_ended(checkpoint: Checkpoint) -> bool:
    run, settings = checkpoint.run, checkpoint.fingerprint["settings"]
    all_done = settings["tol"] == 0 and run["iteration"] >= settings["max_iter"]
    return bool(checkpoint.caller["last"]) and (
        run["converged"] or run["ending"] in (PLANNED, STALLED) or all_done
    )


def _as_path(name: str, value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name}={value!r} must be the path of a file, or None.")
    return Path(value)
