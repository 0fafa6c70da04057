"""Reads which decoder layers hold experts: Megatron-LM's ``moe_layer_freq`` in all its spellings, without ``eval``."""

from __future__ import annotations

import ast
import warnings

_EXPECTED = 'an integer n (every n-th layer), a list of 0 and 1, or an expression such as "([0]*3+[1]*58)"'


def expand(value: object, num_layers: int) -> tuple[tuple[int, ...], str]:
    """Returns one 0/1 per layer, and what was expected instead when ``value`` has none (else an empty text).

    An integer n marks layer i when i % n == 0 (Megatron-LM ``get_moe_layer_pattern``; n = 1: every layer). A list longer
    than ``num_layers`` is an error, as in Megatron-LM: it would hide a wrong layer count.
    """
    if isinstance(value, str):
        value = _evaluated(value, num_layers)
    if type(value) is int and value > 0:
        return tuple(int(i % value == 0) for i in range(num_layers)), ""
    if isinstance(value, (list, tuple)) and all(type(item) is int and item in (0, 1) for item in value):
        if len(value) == num_layers:
            return tuple(value), ""
        return (), f"one 0 or 1 per layer: {num_layers} of them, not {len(value)}"
    return (), _EXPECTED


def numbers(value: object, num_layers: int) -> object:
    """Returns ``value`` with an expression such as ``"[0]*2+[4,128]*20"`` written out; anything else stays as it is."""
    evaluated = _evaluated(value, num_layers) if isinstance(value, str) else value
    return value if evaluated is None else evaluated


def _evaluated(text: str, num_layers: int) -> object:
    """Returns integers, lists of integers, their sums and products by integers; None for everything else."""
    try:
        with warnings.catch_warnings():  # Python's own about texts such as 8e
            warnings.simplefilter("ignore")
            return _fold(ast.parse(text.strip(), mode="eval").body, 4 * num_layers + 64)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _fold(node: ast.expr, longest: int) -> int | list[int]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List) and len(node.elts) <= longest:
        items = [_fold(item, longest) for item in node.elts]
        if all(isinstance(item, int) for item in items):
            return items  # type: ignore[return-value]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _fold(node.left, longest), _fold(node.right, longest)
        if isinstance(node.op, ast.Mult):
            left, right = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(left, list) and isinstance(right, int) and 0 <= right * len(left) <= longest:
                return left * right
        elif isinstance(left, list) and isinstance(right, list) and len(left) + len(right) <= longest:
            return left + right
    raise ValueError("not a pattern of layers")
