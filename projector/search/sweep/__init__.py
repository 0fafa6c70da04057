"""Computes many points of a grid, projected or searched: read from a file, run on cores or a Dask cluster, stored."""
