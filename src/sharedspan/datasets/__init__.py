"""Bundled real tables, a reader of users' tables, and simulated problems with a known truth."""

from sharedspan.datasets.bundled import (
    Dataset,
    load_communities_crime,
    load_parkinsons,
    load_table,
)

__all__ = ["Dataset", "load_communities_crime", "load_parkinsons", "load_table"]
