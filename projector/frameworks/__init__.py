"""Frameworks as data: one YAML file each under ``profiles/``; no model ever asks for a framework's name."""

from projector.frameworks.profiles_io import find, load, named, names
from projector.frameworks.resolve import experts_follow, resolve
from projector.frameworks.types import Framework, Resolved
from projector.mechanisms import Execution

#: The framework that stands for a code base without a profile.
UNKNOWN = "unknown"

__all__ = ["UNKNOWN", "Execution", "Framework", "Resolved", "experts_follow"]
__all__ += ["find", "load", "named", "names", "resolve"]
