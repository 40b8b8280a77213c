"""Bundled tables, a loader for the user's own tables, and simulated data with a known truth."""

from sharedspan.datasets.bundled import (
    Dataset,
    load_communities_crime,
    load_parkinsons,
    load_table,
)

__all__ = ["Dataset", "load_communities_crime", "load_parkinsons", "load_table"]
