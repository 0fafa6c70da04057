"""Functions written operator by operator in torch, counted as they run: what each kernel reads and writes, what autograd
keeps. Formulas of Kimi K3's activation and residual (moonshotai/Kimi-K3), of GELU by tanh."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from projector.frameworks import resolve  # noqa: E402
from projector.layers import attention_residual, local, mlp  # noqa: E402
from projector.layers.cross_entropy import _BYTES  # noqa: E402
from projector.operators.module import Module  # noqa: E402
from projector.operators.types import Stream  # noqa: E402
from projector.workload import zoo  # noqa: E402
from tests.workloads import workload  # noqa: E402

ROWS, WIDTH = 96, 512
SMALL = 0.03  # of all bytes: vectors and statistics


class Traffic(TorchDispatchMode):
    """Bytes that kernels read of distinct tensors and write into new ones; views and allocations run none."""

    def __init__(self) -> None:
        super().__init__()
        self.read = self.written = 0.0
        self.launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [each for each in torch.utils._pytree.tree_leaves(out) if isinstance(each, torch.Tensor)]
        given = [
            each for each in torch.utils._pytree.tree_leaves((args, kwargs or {})) if isinstance(each, torch.Tensor)
        ]
        storages = {each.untyped_storage().data_ptr() for each in given}
        if made and not any(each.untyped_storage().data_ptr() in storages for each in made):
            self.read += sum(_bytes(each) for each in {id(each): each for each in given}.values())
            self.written += sum(_bytes(each) for each in made)
            self.launches += 1
        return out


def _bytes(tensor: Any) -> float:
    """Of the elements that are there: a broadcast dimension has one."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or size == 1)
    number = 1.0
    for size in sizes:
        number *= size
    return number * tensor.element_size()


def counted(function: Callable[..., Any], *inputs: Any) -> tuple[Traffic, Traffic, float]:
    """Traffic forward and backward, and bytes that autograd keeps beside the inputs."""
    kept: dict[int, float] = {}

    def keep(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = _bytes(tensor)
        return tensor

    leaves = [each.detach().requires_grad_() for each in inputs]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), Traffic() as forward:
        out = function(*leaves)
    for each in leaves:
        kept.pop(each.untyped_storage().data_ptr(), None)
    gradient = torch.randn_like(out)
    with Traffic() as backward:
        torch.autograd.grad(out, leaves, gradient)
    return forward, backward, sum(kept.values())


def situ(both: Any, probability: Any | None = None) -> Any:
    gate, up = (half.float() for half in both.chunk(2, -1))
    clamped = 4.0 * torch.tanh(gate / 4.0) * torch.sigmoid(gate)
    made = (clamped * (25.0 * torch.tanh(up / 25.0))).to(both.dtype)
    return made if probability is None else (made * probability).to(both.dtype)


def gelu(wide: Any, x: Any) -> Any:
    return (0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x.to(wide), 3.0))))).to(x.dtype)


GELU = {"gated_linear_unit": False, "composed_gelu": True}
ACTIVATIONS = [
    *((situ, weighted, {"activation_situ_beta": 4.0}) for weighted in (False, True)),
    (partial(gelu, torch.bfloat16), False, {**GELU, "framework": "deepspeed"}),
    (partial(gelu, torch.float32), False, {**GELU, "framework": "pytorch"}),  # under autocast
]


def mixed(bank: Any, stream: Any, norm: Any, score: Any) -> Any:
    wide = torch.cat((bank, stream.unsqueeze(-2)), -2).float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    shares = (scaled * (norm.float() * score.float())).sum(-1).softmax(-1).unsqueeze(-2)
    return (shares @ wide).squeeze(-2).to(stream.dtype)


def compared(part: Module, found: tuple[Traffic, Traffic, float]) -> None:
    for ops, traffic in zip((part.forward, part.backward_input), found, strict=False):
        assert isinstance(traffic, Traffic)
        (op,) = (each for each in ops if isinstance(each, Stream))
        assert op.read == pytest.approx(traffic.read, rel=SMALL), op.name
        assert op.write == pytest.approx(traffic.written, rel=SMALL), op.name
        assert op.launches == traffic.launches, op.name


def here(framework: str = "megatron-lm", **model: Any) -> Any:
    made = workload(replace(zoo.load("llama3_8b"), **model), framework=framework, global_batch_size=32)
    return replace(local.local(resolve(made, "amd", "gfx950")), hidden=WIDTH)


@pytest.mark.parametrize(("written", "weighted", "where"), ACTIVATIONS)
def test_an_activation_that_is_written_out(written: Any, weighted: bool, where: Any) -> None:
    part = mlp.activation("act", WIDTH, ROWS, here(**where), frozenset(), reads="fc1.out", weighted=weighted)
    both = torch.randn(ROWS, 2 * WIDTH // (1 + ("framework" in where)), dtype=torch.bfloat16)
    found = counted(written, both, *(torch.rand(ROWS, 1),) * weighted)
    compared(part, found)
    assert sum(each.bytes for each in part.saves if each.name != "act.in") == pytest.approx(found[2], rel=SMALL)


@pytest.mark.parametrize("candidates", [2, 4])
def test_the_residual_of_kimi_k3(candidates: int) -> None:
    view = here(attn_res_block_size=12)
    part = attention_residual.mixer("norm.mix", candidates, ROWS, view)
    bank = torch.randn(ROWS, candidates - 1, WIDTH, dtype=torch.bfloat16)
    stream, *vectors = (torch.randn(*shape, WIDTH, dtype=torch.bfloat16) for shape in ((ROWS,), (), ()))
    found = counted(mixed, bank, stream, *vectors)
    compared(part, found)
    (kept,) = (each.bytes for each in part.saves if each.name.endswith(".candidates"))
    assert kept == pytest.approx(found[2], rel=SMALL)


# Losses as they run: the most bytes of a logit that live at a time, beside the output layer's weight and its gradient.

TOKENS, WORDS, CHUNKS = 256, 16000, 8


def _loss(kind: str) -> Callable[[Any, Any, Any], None]:
    def one(hidden: Any, labels: Any, weight: Any) -> Any:
        return torch.nn.functional.cross_entropy((hidden @ weight.t()).float(), labels, reduction="sum")

    def chunks(hidden: Any, labels: Any, weight: Any) -> None:
        parts = zip(hidden.chunk(CHUNKS), labels.chunk(CHUNKS), strict=True)
        sum(one(*part, weight) for part in parts).backward()

    def chunk_gradients(hidden: Any, labels: Any, weight: Any) -> None:
        for part, own in zip(hidden.detach().chunk(CHUNKS), labels.chunk(CHUNKS), strict=True):
            logits = part.requires_grad_() @ weight.t()  # those of the chunk before stay until these are there
            torch.nn.functional.cross_entropy(logits.float(), own, reduction="sum").backward()

    return {"fp32": lambda *given: one(*given).backward(), "chunks": chunks, "chunk_gradients": chunk_gradients}[kind]


@pytest.mark.parametrize("kind", ["fp32", "chunks", "chunk_gradients"])
def test_a_loss_holds_as_many_bytes_of_a_logit(kind: str, tmp_path: Path) -> None:
    hidden, weight = (torch.randn(n, 8, dtype=torch.bfloat16, requires_grad=True) for n in (TOKENS, WORDS))
    labels, run = torch.randint(0, WORDS, (TOKENS,)), _loss(kind)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        run(hidden, labels, weight)
    seen.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    sizes = sorted((each["ts"], each["args"]["Bytes"]) for each in events if each.get("name") == "[memory]")
    most = max(accumulate(size for _, size in sizes)) / (TOKENS * WORDS)
    saved, forward, backward = (2 * low + own for low, own in _BYTES[kind])
    assert most == pytest.approx(saved + max(forward, backward), abs=0.15)
