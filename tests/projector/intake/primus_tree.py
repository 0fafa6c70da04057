"""A small Primus checkout for tests: presets and experiments written from keys."""

from pathlib import Path
from typing import Any

import yaml
from asked import put

__all__ = ["checkout", "experiment"]

_FILES = yaml.safe_load((Path(__file__).parent / "data/primus_tree.yaml").read_text())


def checkout(root: Path) -> Path:
    """``root`` with ``primus/configs`` below it."""
    for kind, files in _FILES.items():
        for name, content in files.items():
            path = root / "primus/configs" / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(content))
    return root


def experiment(
    root: Path,
    preset: str,
    framework: str = "megatron",
    config: str = "pre_trainer.yaml",
    trainer: str = "pre_trainer",
    folder: str = "examples/configs/MI300X",
    beside: dict[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """The file of an experiment in ``folder`` of the checkout; ``beside``: keys next to ``modules``."""
    module = {"framework": framework, "config": config, "model": f"{preset}.yaml", "overrides": overrides}
    head = {"work_group": "a", "user_name": "b", "exp_name": "c", "workspace": "d"}
    path = root / folder / "exp.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    return put(path, yaml.safe_dump({**head, **(beside or {}), "modules": {trainer: module}}))
