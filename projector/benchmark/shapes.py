"""Collects the operators that workloads really run, each once: what a kernel table must hold for their projections."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem, raise_all
from projector.frameworks import resolve
from projector.io import csv_file
from projector.kernels import tables
from projector.kernels.protocol import ComputeOp
from projector.layers.step import optimizer
from projector.operators.types import Collective, HostWork
from projector.step.run import owned_by_rank
from projector.step.stages import compute_operators, parts
from projector.workload import zoo
from projector.workload.composition import compositions
from projector.workload.recipe import Recipe
from projector.workload.validate import problems
from projector.workload.workload import Workload

_KIND = {operator: kind for kind, (operator, _) in tables.SHAPES.items()}


def kind_of(op: ComputeOp) -> str:
    """Returns the kind of table that holds an operator."""
    return _KIND[type(op)]


def of_workloads(workloads: Iterable[Workload], vendor: str, arch: str) -> tuple[ComputeOp, ...]:
    """Returns the compute operators of all workloads as one rank of this vendor's stack runs them, each once, unnamed.

    A workload that cannot run or that no model covers adds nothing.
    """
    operators: dict[ComputeOp, None] = {}
    for workload in workloads:
        for op in _operators(workload, vendor, arch):
            operators[replace(op, name="")] = None
    return tuple(operators)


def _operators(workload: Workload, vendor: str, arch: str) -> tuple[ComputeOp, ...]:
    if workload.model.unsupported or problems(workload):
        return ()
    try:
        resolved = resolve(workload, vendor, arch)
        stages = [parts(resolved, each) for each in compositions(workload.model, resolved.workload.recipe)[1]]
        ops: list[Any] = list(compute_operators(chain.from_iterable(stages)))
        for weights in owned_by_rank(resolved, stages):
            ops += [op for op in optimizer(resolved, weights) if not isinstance(op, Collective | HostWork)]
    except ValueError:  # InputError and Unsupported: what is wrong with it is told when it is projected
        return ()
    return tuple(op for op in ops if type(op) in _KIND)  # no table holds recurrent scans


def usual() -> tuple[Workload, ...]:
    """Returns every architecture of the zoo on as few devices as hold its groups: bf16, one sequence of 4096 tokens."""
    workloads = []
    for name in zoo.names():
        model = zoo.load(name)
        experts = model.moe.num_experts if model.moe else 1
        recipe = Recipe(ep=math.gcd(experts, 8), micro_batch_size=1, global_batch_size=8, seq_length=4096)
        workloads.append(Workload(model=model, recipe=recipe, gpus=8, framework="megatron-lm"))
    return tuple(workloads)


def of_file(path: Path) -> tuple[ComputeOp, ...]:
    """Returns the operators of a CSV file with the shape columns of a kernel table (times are not needed).

    Raises :class:`InputError` with every row that cannot be read.
    """
    columns, rows = csv_file.read(path, "a readable CSV file of shapes")
    kind = tables.kind_of(columns)
    if kind is None or not rows:
        expected = f"a header with the columns of one kind of table ({', '.join(tables.KINDS)}) and at least one row"
        raise InputError([Problem(str(path), "", ", ".join(columns if rows else ()) or "nothing", expected)])
    ops: dict[ComputeOp, None] = {}
    mistakes = []
    for number, cells in enumerate(rows, start=2):
        try:
            ops[tables.operator(kind, cells)] = None
        except KeyError as error:
            mistakes.append(Problem(f"{path}:{number}", str(error.args[0]), None, "a column of this name"))
        except (TypeError, ValueError) as error:
            mistakes.append(Problem(f"{path}:{number}", "", str(error), "whole numbers in every size"))
    raise_all(mistakes)
    return tuple(ops)
