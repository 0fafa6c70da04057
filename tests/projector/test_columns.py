"""A layer that is built for many layouts at once is, row by row, the layer of each of them."""

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from harness.evidence import dataset
from harness.predictors.ours import cluster_of
from projector import size
from projector.errors import InputError, Unsupported
from projector.frameworks import Resolved, scope
from projector.frameworks.columns import Runs
from projector.frameworks.scope import _modules_seen, in_columns, recompute_key, recomputed_as, without_recompute
from projector.hardware import catalogue
from projector.hardware.efficiency import of as efficiency_of
from projector.kernels.settings import DEFAULT
from projector.layers import lower
from projector.memo import evolve
from projector.operators.module import Block
from projector.settle.workload import settle, settle_checked
from projector.step.block_times import added
from projector.step.columns import block_sums
from projector.step.priced import priced
from projector.step.stages import counted_names, named
from projector.workload import zoo
from projector.workload.composition import compositions
from tests.workloads import workload

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "measured" / "runs"
ROOMS = ("layers", "operators", "mechanisms")
BUILTINS = {"min", "max", "int", "float"}
NO_SIZES = tuple(tabled("workloads", "columns_without_sizes"))
"""What takes no sizes of a layout, or plain numbers of one at a time."""

numbers = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def blocks(view: Resolved) -> list[Block]:
    kinds = dict.fromkeys(compositions(view.workload.model, view.workload.recipe)[1])
    return [named(view, name).block for kind in kinds for name, _ in counted_names(kind)]


def layouts(view: Resolved, number: int, draw: random.Random) -> list[Resolved]:
    """``view`` and others with sizes that divide what they must."""
    recipe, model = view.workload.recipe, view.workload.model
    found = [view]
    while len(found) < number:
        sizes = {name: getattr(recipe, name) * draw.choice((1, 1, 2)) for name in ("cp", "micro_batch_size")}
        sizes["seq_length"] = recipe.seq_length * draw.choice((1, 2, 4))
        if recipe.sequence_parallel in (True, None) and model.num_attention_heads % (8 * recipe.tp) == 0:
            sizes["tp"] = recipe.tp * draw.choice((1, 2, 4))
        if model.moe and model.moe.num_experts % (2 * recipe.ep) == 0:
            sizes["ep"] = recipe.ep * draw.choice((1, 2))
        changed = evolve(recipe, **sizes)
        work = evolve(view.workload, recipe=changed, gpus=changed.replica_ranks * (sizes.get("ep") or 1))
        changed = evolve(changed, global_batch_size=changed.micro_batch_size * work.dp * view.workload.num_microbatches)
        found.append(evolve(view, workload=evolve(work, recipe=changed)))
    return found


def differences(columns: Any, number: Any, row: int, where: str = "") -> Iterator[str]:
    """Fields of ``columns`` that are in their ``row`` not what ``number`` says."""
    if isinstance(columns, size.Column):
        columns = columns.values[row]
        if columns.ndim:  # rows of experts, with nothing behind the last
            columns, number = [int(each) for each in columns if each], [each for each in number if each]
        if columns != number and (isinstance(columns, list) or abs(columns / number - 1.0) > 1e-14):
            yield f"{where}: {columns}, not {number}"
    elif isinstance(columns, tuple) and not hasattr(columns, "_fields"):
        assert len(columns) == len(number), where
        for i, (one, other) in enumerate(zip(columns, number, strict=True)):
            yield from differences(one, other, row, f"{where}[{i}]")
    elif hasattr(columns, "_fields") or is_dataclass(columns):
        assert type(columns) is type(number), where
        names = getattr(columns, "_fields", None) or [each.name for each in fields(columns)]
        for name in names:
            yield from differences(getattr(columns, name), getattr(number, name), row, f"{where}.{name}")
    elif columns != number:
        yield f"{where}: {columns}, not {number}"


def traced(views: Sequence[Resolved]) -> Iterator[tuple[np.ndarray, list[Block]]]:
    cells = scope.numbers(views)

    def build(rows: np.ndarray) -> list[Block]:
        return blocks(in_columns(views[0], cells[:, rows]))

    return size.trace(build, len(views))


@pytest.mark.skipif(not RUNS.is_dir(), reason="no measured runs in this checkout")
def test_columns_are_the_layouts_of_every_measured_run(every: int) -> None:
    draw, seen, groups = random.Random(0), set[Resolved](), 0
    for run in [run for run in dataset.read(RUNS) if not run.problem][::every]:
        try:
            view = settle(run.workload, cluster_of(run.cluster, run.gpu, run.gpus_per_node), published=True)
            if view in seen:
                continue
            seen.add(view)
            views = layouts(view, 4, draw)
            alone = [blocks(each) for each in views]
        except (InputError, Unsupported):
            continue
        assert len({(_modules_seen(each), recompute_key(each)) for each in views}) == 1
        for rows, made in traced(views):
            groups += len(rows) > 1
            for row, layout in enumerate(rows):
                for one, other in zip(made, alone[layout], strict=True):
                    assert not list(differences(one, other, row, f"{run.id}: {one.name}"))
    assert groups > 200 // every


@given(numbers, st.integers(1, 9))
def test_arithmetic_on_a_column_is_that_on_its_rows(values: list[int], other: int) -> None:
    def law(x: Any) -> Any:
        y = size.most(x, other) - size.least(x, other) + -(-x // other) * 2.0 + x % other + other / x + x**2
        z = size.ceil(y / 3) + size.whole(y / 3) + size.real(x) + size.root(x) + abs(-y) + round(y / 7) + (other - x)
        return z * size.per_row(lambda n: 1.0 / n, x) + size.where(lambda n: n > 4, x, y, z)

    column = size.Column(np.array(values))
    assert law(column).values.tolist() == [law(value) for value in values]


@given(numbers, st.integers(1, 9), st.integers(2, 4))
def test_rows_that_disagree_are_traced_apart(values: list[int], edge: int, parts: int) -> None:
    def branches(x: Any) -> Any:
        found = x * 10 if x > edge else x + 1
        if x % parts == 0:
            found = found - 5
        return found + len(range(x)) if found != 7 else 0

    groups = list(size.trace(lambda rows: branches(size.column([values[row] for row in rows])), len(values)))
    found = {row: size.rows(made, len(rows))[i] for rows, made in groups for i, row in enumerate(rows.tolist())}
    assert found == {row: branches(value) for row, value in enumerate(values)}


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=4, max_size=4), min_size=1, max_size=5)
)
def test_matrices_of_one_shape_count_once_in_each_row(matrices: list[list[tuple[int, int]]]) -> None:
    columns = [tuple(size.Column(np.array(side)) for side in zip(*each, strict=True)) for each in matrices]
    alone = [sum(height * width for height, width in {each[row] for each in matrices}) for row in range(4)]
    assert size.rows(size.area(columns), 4).tolist() == alone
    assert [size.area(each[row] for each in matrices) for row in range(4)] == alone


@pytest.mark.parametrize("room", ROOMS)
def test_layers_take_columns_where_they_compare_sizes(room: str) -> None:
    """Builtins that compare or convert split a column row by row, and so do those of ``math``."""
    for file in sorted((ROOT / "projector" / room).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "math":
                assert not {each.name for each in node.names} & {"ceil", "floor", "sqrt"}, file
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
                words = ast.unparse(node)
                said = f"{file.relative_to(ROOT)}:{node.lineno}: {words}: least, most, whole, real of projector.size"
                assert words.startswith(NO_SIZES), said


@pytest.mark.parametrize("number", range(6))
def test_blocks_of_many_runs_take_the_time_of_each(number: int) -> None:
    """Dense, routed, latent attention, hybrid; traffic beside compute; forwards beside backwards."""
    model, gpus, switches = JOBS[number]
    cluster, draw = catalogue.default_cluster("h100_sxm"), random.Random(number)
    efficiency = efficiency_of(cluster.gpu)
    runs: list[Resolved] = []
    while len(runs) < 25:
        sizes: dict[str, Any] = {name: draw.choice(values) for name, values in CHOICES.items()}
        sizes |= {"sequence_parallel": sizes["tp"] > 1, "vpp": 2 if sizes["pp"] > 1 else 1, **switches}
        if zoo.load(model).moe is None:
            sizes |= {"ep": 1, "etp": 1}
        batch: dict[str, Any] = {"global_batch_size": 8 * gpus, "allow_uneven_pipeline_split": True}
        try:
            runs.append(settle_checked(workload(model, gpus, **sizes, **batch), cluster, published=False))
        except InputError:
            continue
    found: dict[int, dict[Any, np.ndarray]] = {}
    for rows, blocks in block_sums(Runs.of(runs), cluster, efficiency, DEFAULT):
        for place, row in enumerate(rows.tolist()):
            found[row] = {name: each[..., place] for name, each in blocks.items()}
    for row, run in enumerate(runs):
        blocks_of, made = found[row], priced(run, cluster, efficiency, "simulate", DEFAULT)
        for kind in compositions(run.workload.model, run.workload.recipe)[1]:
            for name, _ in counted_names(kind):
                alone = np.array(added(made.layers.times[name]))
                assert np.abs(blocks_of[name] - alone).max() <= 1e-12 * alone.max(), (name, run.workload.recipe)


def test_runs_that_recompute_other_modules_share_what_a_layer_is_made_of() -> None:
    """And each layer is what it is alone."""
    cluster = catalogue.default_cluster("h100_sxm")
    every = [settle_checked(workload("llama3_8b", 16, recompute_granularity=each), cluster, published=False)
             for each in ("none", "selective", "full")]  # fmt: skip
    kind, bare = every[0].workload.model.layer_kinds[0], without_recompute(every[0])
    layers = [lower.layer(kind, recomputed_as(bare, run)) for run in every]
    assert all(layer.forward is layers[0].forward for layer in layers)
    assert layers == [lower.layer(kind, run) for run in every]


def test_blocks_add_up_only_where_weights_stay() -> None:
    """Gathers of every micro-batch hide behind neighbours: what a block takes is then no sum."""
    cluster = catalogue.default_cluster("h100_sxm")
    own = [settle_checked(workload("llama3_8b", 16, data_parallel_sharding=each), cluster, published=False)
           for each in ("optim", "optim_grads_params")]  # fmt: skip
    found = list(block_sums(Runs.of(own), cluster, efficiency_of(cluster.gpu), DEFAULT))
    assert [rows.tolist() for rows, _ in found] == [[0]]


JOBS: tuple[tuple[str, int, dict[str, Any]], ...] = tabled("workloads", "columns")
CHOICES = tabled("workloads", "sizes")
