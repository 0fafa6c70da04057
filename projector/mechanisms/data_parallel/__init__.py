"""Data parallelism: which rank holds which share of parameters, gradients and optimizer state, and what travels for that."""

from projector.mechanisms.data_parallel.base import DataParallel, Gathered
from projector.mechanisms.data_parallel.degree import of_degree

__all__ = ["DataParallel", "Gathered", "of_degree"]
