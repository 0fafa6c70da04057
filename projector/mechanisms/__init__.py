"""The mechanisms that frameworks choose: strategies, each with the parameters that its framework may change."""

from projector.mechanisms.execution import Execution

__all__ = ["Execution"]
