"""The former home of ``persistence.checkpoint.CheckpointOptions``, under its former name."""

from sharedspan.persistence.checkpoint import CheckpointOptions as Keeping

__all__ = ["Keeping"]
