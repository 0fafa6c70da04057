"""Blocks of torchtitan, driven by a stand-in of its signatures (pytorch/torchtitan v0.2.2); other releases are refused."""

import sys
from dataclasses import replace
from typing import Any

import pytest
from asked import refusal

torch = pytest.importorskip("torch")

from benchmark_cases import arguments, stand_in  # noqa: E402
from torch import nn  # noqa: E402

from projector.benchmark import measured, source  # noqa: E402
from projector.benchmark.device import Device  # noqa: E402
from projector.benchmark.layers_narrow import converted  # noqa: E402
from projector.benchmark.layers_parts import LayerSetup  # noqa: E402
from projector.benchmark.shrink import shrink_to  # noqa: E402
from projector.errors import InputError, Unsupported  # noqa: E402
from projector.frameworks import resolve  # noqa: E402
from projector.hardware import catalogue  # noqa: E402
from projector.projection import project  # noqa: E402
from projector.workload import zoo  # noqa: E402
from projector.workload.workload import Workload  # noqa: E402
from tests.workloads import workload  # noqa: E402

SIZES = {"num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 112, "num_attention_heads": 4, "vocab_size": 128}


class _Heads(nn.Module):
    """Its products see the number of heads by their own widths, as torchtitan's do under tensor parallelism."""

    def __init__(self, dim: int, heads: int, groups: int, width: int, normed: bool = False) -> None:
        super().__init__()
        self.width = width
        self.wq, self.wk, self.wv = (nn.Linear(dim, n * width, bias=False) for n in (heads, groups, groups))
        self.wo = nn.Linear(heads * width, dim, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)]) if normed else None

    def forward(self, x: Any, rope: Any) -> Any:
        batch, length, _ = x.shape
        assert rope.shape[0] == length
        q, k, v = (each(x).view(batch, length, -1, self.width).transpose(1, 2) for each in (self.wq, self.wk, self.wv))
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


class _Gated(nn.Module):
    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(dim, hidden_dim, bias=False), nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x: Any) -> Any:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


_MoEArgs = arguments(
    "MoEArgs", num_experts=8, num_shared_experts=1, score_func="sigmoid", top_k=1, use_grouped_mm=True,
    load_balance_coeff=1e-3, _debug_force_load_balance=False,
)  # fmt: skip
_LlamaArgs = arguments(
    "TransformerModelArgs", dim=4096, n_layers=32, n_heads=32, n_kv_heads=None, multiple_of=256, ffn_dim_multiplier=None,
    rope_theta=10000, max_seq_len=131072, attn_type="sdpa",
)  # fmt: skip
_QwenArgs = arguments(
    "Qwen3ModelArgs", dim=1024, n_heads=16, n_kv_heads=8, head_dim=128, hidden_dim=3072, rope_theta=1e6, qk_norm=True,
    max_seq_len=4096, moe_enabled=False, moe_inter_dim=768, moe_args=None,
)  # fmt: skip
_DeepSeekArgs = arguments(
    "DeepSeekV3ModelArgs", max_seq_len=16384, dim=2048, inter_dim=10944, moe_inter_dim=1408, n_dense_layers=1, n_heads=16,
    q_lora_rank=0, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, moe_args=None,
)  # fmt: skip


class _MoE(nn.Module):
    def __init__(self, args: Any, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.args = args
        self.w = nn.Parameter(torch.empty(args.num_experts, dim, hidden_dim))
        self.router = nn.Linear(dim, args.num_experts, bias=False)
        self.shared_experts = _Gated(dim, hidden_dim * args.num_shared_experts) if args.num_shared_experts else None
        self.register_buffer("tokens_per_expert", torch.zeros(args.num_experts))

    def forward(self, x: Any) -> Any:
        assert float(self.tokens_per_expert.sum()) == 0.0
        out = (x @ self.w[0]) @ self.w[0].t() + self.router(x).mean(-1, keepdim=True)
        return out if self.shared_experts is None else out + self.shared_experts(x)


class _Block(nn.Module):
    def __init__(self, layer_id: int, model_args: Any) -> None:
        super().__init__()
        args = self.args = model_args
        moe = getattr(args, "moe_enabled", layer_id >= getattr(args, "n_dense_layers", layer_id + 1))
        if isinstance(args, _LlamaArgs):
            self.attention: nn.Module = _Heads(
                args.dim, args.n_heads, args.n_kv_heads or args.n_heads, args.dim // args.n_heads
            )
            hidden = int((args.ffn_dim_multiplier or 1.0) * int(2 * 4 * args.dim / 3))
            wide = args.multiple_of * ((hidden + args.multiple_of - 1) // args.multiple_of)
        elif isinstance(args, _QwenArgs):
            self.attention = _Heads(args.dim, args.n_heads, args.n_kv_heads, args.head_dim, args.qk_norm)
            wide = args.hidden_dim
        else:
            whole, wide = args.qk_nope_head_dim + args.qk_rope_head_dim, args.inter_dim
            self.attention = _Heads(args.dim, args.n_heads, args.n_heads, whole)
            assert args.moe_impl == "standard"
        self.moe = _MoE(args.moe_args, args.dim, args.moe_inter_dim) if moe else None
        self.feed_forward = None if moe else _Gated(args.dim, wide)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(args.dim), nn.RMSNorm(args.dim)

    def forward(self, x: Any, freqs_cis: Any, attention_masks: Any, positions: Any = None) -> Any:
        assert attention_masks is None
        assert positions is None
        x = x + self.attention(self.attention_norm(x), freqs_cis)
        return x + (self.moe or self.feed_forward)(self.ffn_norm(x))


@pytest.fixture
def titan(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The package, and its modules by name."""

    def of_width(width: int, length: int, theta: float) -> Any:
        assert theta > 1
        return torch.zeros(length, width // 2)

    def of_arguments(args: Any) -> Any:
        return torch.zeros(args.max_seq_len, args.qk_rope_head_dim // 2)

    contents: dict[str, dict[str, Any]] = {".moe": {"MoEArgs": _MoEArgs, "FeedForward": _Gated}}
    for family, kind, rotation in (
        ("llama3", _LlamaArgs, {"precompute_freqs_cis": of_width}),
        ("qwen3", _QwenArgs, {"precompute_rope_cache": of_width}),
        ("deepseek_v3", _DeepSeekArgs, {"precompute_freqs_cis": of_arguments}),
    ):
        contents[f".{family}.model.args"] = {kind.__name__: kind}
        contents[f".{family}.model.model"] = {"TransformerBlock": _Block, **rotation}
    made = stand_in(monkeypatch, {f"torchtitan.models{name}": inside for name, inside in contents.items()})
    return {name.removeprefix("torchtitan"): module for name, module in made.items()}


def _work(name: str, tp: int = 1, **recipe: Any) -> Workload:
    heads = {} if zoo.load(name).mla else {"num_query_groups": 2, "kv_channels": 16}
    model = zoo.load(name, **SIZES, **heads)
    if model.moe:
        shared = 32 if model.moe.moe_shared_expert_intermediate_size else 0
        freq = (0, 1) if model.mla else model.moe.moe_layer_freq
        plain = {"moe_router_num_groups": None, "moe_router_group_topk": None, "moe_router_enable_expert_bias": False}
        sizes = {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 32, "moe_layer_freq": freq}
        moe = replace(model.moe, moe_shared_expert_intermediate_size=shared, **sizes, **plain)
        model = replace(model, moe=moe, mtp_num_layers=0)
    stated = {"micro_batch_size": 2, "global_batch_size": 2, "seq_length": 32, "precision": "bf16", "tp": tp}
    return workload(model, tp, "torchtitan", **stated | recipe)


def _made(work: Workload) -> LayerSetup:
    alone = shrink_to(work, 1).workload
    return LayerSetup(alone, execution=resolve(alone, "cpu", "x").execution)


def test_blocks_are_a_ranks_part_of_their_family(titan: dict[str, Any]) -> None:
    for name, family in (
        ("llama3_8b", _LlamaArgs),
        ("qwen3_8b", _QwenArgs),
        ("mixtral_8x7b", _QwenArgs),
        ("deepseek_v3", _DeepSeekArgs),
    ):
        for tp in (1, 2):
            made = _made(_work(name, tp))
            for kind in dict.fromkeys(made.model.layer_kinds):
                ours, theirs = (source.find(n, made).layer(kind) for n in ("torch", "torchtitan"))
                assert isinstance(theirs.layer.args, family)
                if family is not _DeepSeekArgs and not kind.moe:  # of the others the stand-in has no real weights
                    sizes = [sum(weight.numel() for weight in layer.parameters()) for layer in (ours, theirs)]
                    assert sizes[0] == sizes[1], (name, tp)
                x = torch.randn(64, 64, dtype=made.dtype, requires_grad=True)
                out = theirs(x)
                assert (out.shape, out.dtype) == (x.shape, x.dtype)
                out.sum().backward()
                assert all(weight.grad is not None for weight in theirs.parameters()), (name, kind)
                assert {weight.dtype for weight in theirs.parameters()} == {
                    torch.float32
                }  # torchtitan casts at each use
                if kind.moe:
                    stated = theirs.layer.args.moe_args
                    assert (stated.num_experts, stated.top_k) == (8, 2)
                    shared = theirs.layer.moe.shared_experts
                    assert (
                        shared.w1.out_features if shared else 0
                    ) == made.model.moe.moe_shared_expert_intermediate_size  # type: ignore[union-attr]


def test_a_step_of_its_blocks_is_timed(titan: dict[str, Any], cpu: Device) -> None:
    here = catalogue.cluster("cpu")
    for work in (_work("llama3_8b"), _work("llama3_8b", precision="fp8", fp8_recipe="tensorwise", seq_length=16)):
        found = measured.measure(work, here, cpu, layers="torchtitan", budget=0.01, most=1)
        assert found.timings.source == "torchtitan"
        assert measured.restore(found, work, here).step_seconds > 0
        compiled = project(replace(work, recipe=replace(work.recipe, torch_compile=True)), here).resolved
        assert "torch_compile" in found.eager(compiled)


def test_another_release_or_none_is_refused_in_one_line(titan: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = _made(_work("llama3_8b"))
    bare = arguments("TransformerModelArgs", dim=1, n_heads=1)
    monkeypatch.setattr(titan[".models.llama3.model.args"], "TransformerModelArgs", bare)
    with pytest.raises(InputError, match=r"has no ffn_dim_multiplier, .*torchtitan 0\.2") as caught:
        source.find("torchtitan", made).layer(made.model.layer_kinds[0])
    assert len(caught.value.lines()) == 1
    monkeypatch.delitem(sys.modules, "torchtitan.models.llama3.model.model")  # as on its main branch
    refusal(source.find, "torchtitan", made, match=r"llama3\.model\.model.*pip install torchtitan")
    for name in [name for name in sys.modules if name.startswith("torchtitan")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchtitan", None)
    refusal(source.find, "torchtitan", made, match=r"--layers: found .torchtitan")


def test_what_its_blocks_lack_is_refused(titan: dict[str, Any], cpu: Device) -> None:
    model = _work("llama3_8b").model
    for odd, word in (
        (replace(model, normalization="LayerNorm"), "LayerNorm"),
        (replace(model, add_qkv_bias=True), "biases"),
        (replace(model, gated_linear_unit=False), "without a gate"),
        (replace(model, position_embedding_type="alibi"), "alibi"),
    ):
        refusal(source.find, "torchtitan", _made(replace(_work("llama3_8b"), model=odd)), match=word, kind=Unsupported)
    work = _work("mixtral_8x7b", precision="fp8", fp8_recipe="tensorwise")
    made = _made(work)
    with pytest.raises(Unsupported, match="8-bit experts that are a _MoE"):
        converted(source.find("torchtitan", made).layer(made.model.layer_kinds[0]), work, cpu)
