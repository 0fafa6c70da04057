"""transformer-perf-estimates (arXiv:2410.00273): its laws implemented here, as a library and as a predictor."""

from harness.predictors.tpe.layer import STRATEGIES, Shape
from harness.predictors.tpe.predictor import SearchResult, candidates, search
from harness.predictors.tpe.step import Config, Estimate, Placed, estimate
from harness.predictors.tpe.system import System, described

__all__ = [
    "STRATEGIES", "Config", "Estimate", "Placed", "SearchResult", "Shape", "System", "candidates", "described", "estimate",
    "search",
]  # fmt: skip
