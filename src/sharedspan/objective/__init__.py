"""The objective of solvers: the loss, its gradients, and least squares in a span."""

from sharedspan.objective.base import Objective, Point
from sharedspan.objective.local import GramObjective, RowObjective, build_objective

__all__ = ["GramObjective", "Objective", "Point", "RowObjective", "build_objective"]
