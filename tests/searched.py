"""Every layout of a space, one by one: what a search is held against."""

from typing import Any

from projector.search.tree import Tree

__all__ = ["every_layout"]


def every_layout(tree: Tree) -> list[dict[str, Any]]:
    """The recipe fields of each layout of ``tree``, none left out."""
    return [
        tree.fields(branch.shape, branch.pipe, layer, one)
        for branch in tree.branches()
        for layer, once in zip(branch.layers, branch.once, strict=True)
        for one in once
    ]
