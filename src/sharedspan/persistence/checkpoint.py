"""Checkpoints: how far a long fit has come, in a file from which it can go on."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sharedspan.persistence.container import Path, Tree, TreeFormat
from sharedspan.persistence.fingerprint import Fingerprint

WRITING_SHARE = 0.05  # of the time of a fit that may go into writing


class CheckpointError(ValueError):
    """A file that is no checkpoint, is damaged, or belongs to another fit."""


FORMAT = TreeFormat("checkpoint", 1, CheckpointError, "give another checkpoint, or do without")


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds."""

    path: Path
    fingerprint: Mapping[str, Tree]
    caller: Tree  # what the caller of the run gave to be kept
    run: Mapping[str, Tree]  # the state of the run

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """The checkpoint in a file; a ``CheckpointError`` where there is none to be read."""
        tree = FORMAT.read(path)
        try:
            return cls(path, tree["fingerprint"], tree["caller"], tree["run"])
        except (KeyError, TypeError) as error:
            raise FORMAT.damaged(path) from error

    def require(self, fingerprint: Fingerprint) -> None:
        """Raise a ``CheckpointError`` if it belongs to other data or settings."""
        try:
            difference = fingerprint.difference(self.fingerprint)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise FORMAT.damaged(self.path) from error
        if difference is not None:
            raise CheckpointError(
                f"{str(self.path)!r} is a checkpoint of another fit ({difference}): give it the "
                "data and settings of that fit, or fit without it."
            )


class Checkpoints:
    """The checkpoints of one fit, of one run or several: where, when and of what.

    Parameters
    ----------
    path : path or None
        The file; with None nothing is written.
    fingerprint : Fingerprint
    rng : numpy.random.Generator, optional
        The one that the runs draw from: its state is kept, and set when a run goes on.
    seconds : float
        Time between two writes; longer where writing would take more than a twentieth of it.
    every : int, optional
        Write after this many iterations, too.
    saved : Checkpoint, optional
        What to go on from; a ``CheckpointError`` is raised if it belongs to another fit.

    Attributes
    ----------
    caller : tree
        What the caller will need to go on, such as the number of the run, for the caller to set
        before each run. With ``saved``, what was set then; otherwise None.
    """

    def __init__(
        self,
        path: Path | None,
        fingerprint: Fingerprint,
        *,
        rng: np.random.Generator | None = None,
        seconds: float = 60.0,
        every: float = math.inf,
        saved: Checkpoint | None = None,
    ) -> None:
        if saved is not None:
            saved.require(fingerprint)
        self.path, self.fingerprint, self.rng = path, fingerprint, rng
        self.seconds, self.every = seconds, every
        self.caller: Tree = None if saved is None else saved.caller
        self._saved = saved
        self._start: Tree = None  # the generator's state when the run began
        self._kept: dict[str, Tree] | None = None  # and not written yet
        self._proved = self._warned = False  # that it can be written; that it no longer can
        self._written, self._pause, self._iteration = -math.inf, seconds, 0

    def begin(self) -> Checkpoint | None:
        """Begin a run: what to go on from, which only the first run has, or None.

        The generator then stands where it stood when that run began.
        """
        saved, self._saved = self._saved, None
        if saved is not None:
            self.set_rng(saved, "start")
        self._start = self._rng_state()
        return saved

    def set_rng(self, saved: Checkpoint, when: str) -> None:
        """Put the generator where it stood at the "start" of a saved run, or "now", at its end."""
        if self.rng is None:
            return
        try:
            self.rng.bit_generator.state = saved.run["rng"][when]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{str(saved.path)!r} goes with another kind of random generator than "
                f"{type(self.rng.bit_generator).__name__}: give the fit one of the same kind."
            ) from error

    def keep(self, state: Mapping[str, Tree], now: bool = False) -> None:
        """Take the state of a run, and write it if it is time, or ``now``.

        References are enough: what is kept is not to be changed. A function in it is called when
        it is written.
        """
        if self.path is None:
            return
        rng = {"start": self._start, "now": self._rng_state()}
        self._kept = {"run": {**state, "rng": rng}, "caller": self.caller}
        waited, done = time.monotonic() - self._written, state["iteration"] - self._iteration
        if now or waited >= self._pause or done >= self.every:
            self.flush()

    def flush(self) -> None:
        """Write what is kept, if it is not written yet.

        The first write of a fit raises an OSError where it fails. Later ones warn, once: hours may
        be at stake, and the next write may succeed.
        """
        if self._kept is None or self.path is None:
            return
        began = time.monotonic()
        try:
            FORMAT.write(self.path, {"fingerprint": self.fingerprint.tree, **self._kept})
            self._proved = True
        except Exception as error:
            if not self._proved:
                self._kept = None
                raise
            self._warn(error)
        self._written, self._iteration = time.monotonic(), self._kept["run"]["iteration"]
        self._pause = max(self.seconds, (self._written - began) / WRITING_SHARE)
        self._kept = None

    def _warn(self, error: Exception) -> None:
        said, self._warned = self._warned, True
        if not said:
            what = str(error) if isinstance(error, OSError) else f"{str(self.path)!r}: {error!r}"
            warnings.warn(
                f"A checkpoint was not written; the fit goes on and tries again later. {what}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _rng_state(self) -> Tree:
        return None if self.rng is None else self.rng.bit_generator.state
