"""Workloads from the files of other tools: one module a format, each with ``load(path, …) -> Loaded``."""
