"""Fits on a Dask cluster: shards of tasks on the workers, the objective over all of them."""
