"""Computes many points of a grid, projected or searched: read from a file, run on one core, all cores or a Dask
cluster, and stored."""
