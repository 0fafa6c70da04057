"""The orders of PyTorch's pipeline schedules, asked from torch itself without a process group."""

from types import SimpleNamespace

import pytest

from projector import pipeline

schedules = pytest.importorskip("torch.distributed.pipelining.schedules", reason="torch is not installed")

CASES = {
    "1f1b": ("Schedule1F1B", [(1, m) for m in (1, 4, 8, 13)]),
    "gpipe": ("ScheduleGPipe", [(1, 5)]),
    "interleaved": ("ScheduleInterleaved1F1B", [(2, 4), (2, 8), (3, 12), (4, 16), (2, 6), (2, 10), (2, 3)]),
    "interleaved_zb": ("ScheduleInterleavedZeroBubble", [(2, 4), (2, 8), (3, 12), (2, 10)]),
    "looped_bfs": ("ScheduleLoopedBFS", [(2, 4), (3, 5)]),
    "zbv": ("ScheduleZBVZeroBubble", [(2, 1), (2, 4), (2, 7), (2, 12)]),
    "dualpipe_v": ("ScheduleDualPipeV", [(2, 8), (2, 9), (2, 16)]),
}
FLAT = [(name, of, vpp, m, pp) for name, (of, sizes) in CASES.items() for vpp, m in sizes for pp in (2, 4, 3)]


def torch_order(of, pp, vpp, m, rank):
    """``[(kind, stage, microbatch)]`` of torch's class, its constructor (which needs a process group) left out."""
    cls = getattr(schedules, of, None)
    if cls is None:
        pytest.skip(f"this torch has no {of}")
    bare = object.__new__(cls)
    rounds = max(1, m // pp)
    known = {
        "pp_group_size": pp, "_num_stages": pp * vpp, "num_stages": pp * vpp, "_n_microbatches": m,
        "n_local_stages": vpp, "number_of_rounds": rounds, "microbatches_per_round": m // rounds,
        "_stages": [SimpleNamespace()] * vpp, "rank": rank,
    }  # fmt: skip
    for key, value in known.items():
        setattr(bare, key, value)
    if hasattr(cls, "_calculate_single_rank_operations"):
        actions = bare._calculate_single_rank_operations(rank)
    elif hasattr(cls, "_get_pipeline_order"):
        actions = bare._get_pipeline_order()[rank]
    else:
        pytest.skip(f"{of} does not show its order in this torch")
    return [step for action in actions if action is not None for step in flatten(action)]


def flatten(action):
    """Overlapped pairs one after the other; a whole backward as ``FULL``; the reduction of gradients left out."""
    if getattr(action, "sub_actions", None):
        return [step for part in action.sub_actions for step in flatten(part)]
    if action.computation_type.value == "REDUCE_GRAD":
        return []
    kind = {"F": "F", "B": "FULL", "I": "B", "W": "W"}[action.computation_type.value]
    return [(kind, action.stage_index, action.microbatch_index)]


@pytest.mark.parametrize(("name", "of", "vpp", "m", "pp"), FLAT)
def test_same_order_as_torch(name, of, vpp, m, pp):
    rounds = max(1, m // pp)
    if name.startswith("interleaved") and m % rounds:
        pytest.skip("torch refuses this number of micro-batches")
    if name == "dualpipe_v" and m < 2 * pp:
        pytest.skip("torch refuses fewer than 2·pp micro-batches")
    if name == "1f1b" and m < pp:
        pytest.skip("torch refuses fewer micro-batches than stages")
    group = m // rounds if name.startswith("interleaved") else None
    mine = pipeline.build(name, pp, vpp, m, group)
    for rank in range(pp):
        theirs = torch_order(of, pp, vpp, m, rank)
        if mine.split:
            theirs = [out for k, s, i in theirs for out in ([("B", s, i), ("W", s, i)] if k == "FULL" else [(k, s, i)])]
        else:
            theirs = [("B" if k == "FULL" else k, s, i) for k, s, i in theirs]
        place = mine.placement[rank]
        ours = [(k, place[chunk], i) for k, chunk, i in mine.orders[rank]]
        if name == "1f1b" and rank == pp - 1:
            # torch 2.x counts this rank's forwards from 1 in the list it shows (not in what it runs): compare the rest
            ours, theirs = ([(k, s, i if k == "B" else None) for k, s, i in order] for order in (ours, theirs))
        assert ours == theirs
