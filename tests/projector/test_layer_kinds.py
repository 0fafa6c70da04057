"""A model is a sequence of layer kinds: strings, lists, and what folds over them."""

from dataclasses import replace

import pytest
from asked import refusal
from published import close
from tabled import tabled

from projector.errors import InputError, Unsupported
from projector.frameworks import resolve
from projector.frameworks.flops import flops_per_token
from projector.hardware import catalogue
from projector.layers import lower
from projector.operators.types import Attention, Collective, Gemm, GroupedGemm, Scan, Stream
from projector.operators.weights import weight_set
from projector.projection import project
from projector.workload import layer_pattern, zoo
from projector.workload.layer_kinds import Mamba1, Recurrent, SharedBlock
from projector.workload.model import Model
from projector.workload.parameters import count, layer
from projector.workload.validate import problems
from projector.workload.workload import Workload
from tests.workloads import workload


def case(model: Model, gpus: int = 8, **fields: object) -> Workload:
    return workload(model, gpus, **{"global_batch_size": 16} | fields)


@pytest.mark.parametrize("name", ["llama3_8b", "qwen3_30b_a3b", "deepseek_v3"])
def test_a_hybrid_string_of_attention_and_mlp_is_the_plain_model(name: str) -> None:
    """Both have two norms and two residuals for the pair, so the same operators, weights and parameters."""
    plain = zoo.load(name, num_layers=4, mtp_num_layers=0)
    attention = "+" if plain.mla else "*"
    letters = "".join(attention + ("E" if kind.moe else "-") for kind in plain.layer_kinds)
    hybrid = zoo.load(name, num_layers=8, mtp_num_layers=0, hybrid_layer_pattern=letters)
    assert count(hybrid) == count(plain)
    made, other = (resolve(case(model, ep=1), "nvidia", "hopper") for model in (hybrid, plain))
    for at in (0, 3):
        mixer, mlp = (lower.layer(kind, made) for kind in hybrid.layer_kinds[2 * at : 2 * at + 2])
        whole = lower.layer(plain.layer_kinds[at], other)
        assert (*mixer.forward, *mlp.forward) == whole.forward
        assert (*mlp.backward_input, *mixer.backward_input) == whole.backward_input
        assert (*mixer.weights, *mlp.weights) == whole.weights
        assert mixer.saved_bytes + mlp.saved_bytes == pytest.approx(whole.saved_bytes)
    cluster = catalogue.default_cluster("h100_sxm")
    long, short = (project(case(model, ep=8 if plain.moe else 1, pp=1), cluster) for model in (hybrid, plain))
    assert long.step_seconds == pytest.approx(short.step_seconds, rel=0.05)


def test_layers_of_different_sizes() -> None:
    """Heads, widths and windows from lists; none at all where a list says 0."""
    lists = {
        "num_attention_heads": [32, 16, 0, 32],
        "num_query_groups": [8, 4, 8, 8],
        "ffn_hidden_size": [14336, 0, 1024, 14336],
        "window_size": [0, 512, 0, 0],
    }
    model = zoo.load("llama3_8b", num_layers=4, per_layer=lists)
    full, small, narrow, last = model.layer_kinds
    assert full == last
    assert full.plain
    assert (small.window, small.mlp) == (512, None)
    assert narrow.mixer is None
    assert (model.within(small).num_attention_heads, model.within(full)) == (16, model)
    plain = zoo.load("llama3_8b", num_layers=4)
    h = model.hidden_size
    less = 2 * h * (h // 2 + 4 * 128) + 3 * h * 14336 + h + 2 * h * (h + 8 * 128) + 3 * h * (14336 - 1024) + h
    assert count(plain).total - count(model).total == less
    made = project(case(model, tp=2), catalogue.default_cluster("h100_sxm"))
    assert made.step_seconds < project(case(plain, tp=2), catalogue.default_cluster("h100_sxm")).step_seconds


def test_strings_repeat_and_name_what_is_wrong() -> None:
    assert layer_pattern.expand("(*-)2E|(-)3") == "*-*-E---"
    assert layer_pattern.stages("(*-)2E|(-)3") == (5, 3)
    for wrong in (
        {"hybrid_layer_pattern": "*-e-"},
        {"hybrid_layer_pattern": "*-*"},
        {"per_layer": {"kv_channels": [1]}},
    ):
        with pytest.raises(InputError) as found:
            project(case(zoo.load("llama3_8b", num_layers=4, **wrong)), catalogue.default_cluster("h100_sxm"))
        (problem,) = found.value.problems
        assert next(iter(wrong)) in problem.key
        assert any(word in problem.expected for word in ("nearest: E", "4 of them, not 3", "one entry a layer: 4"))


#: Active parameters as published (or counted from the published shapes), in 1e9.
ACTIVE = tabled("published", "active_parameters")  # fmt: skip


def test_mixers_of_published_models_have_their_parameters() -> None:
    """Total and active within 0.1 %, and what one rank of one holds is the model."""
    for name in zoo.names():
        model, published = zoo.load(name), zoo.entry(name).parameters_published
        if model.uniform or model.unsupported:
            continue
        found = count(model)
        assert published is None or close(found.main, published), name
        assert found.active / 1e9 == pytest.approx(ACTIVE.get(name, found.active / 1e9), rel=1e-3), name
        made = resolve(case(model, gpus=1), "nvidia", "hopper")
        for kind in dict.fromkeys(model.layer_kinds):
            assert lower.layer(kind, made).owned.total == layer(model, kind).total, (name, kind.name)


@pytest.mark.parametrize("normalization", ["RMSNorm", "LayerNorm", "NonParametricLayerNorm"])
def test_norms_inside_attention_are_those_of_the_model(normalization: str) -> None:
    """Of queries and keys, and of latents: as many vectors as the norms of hidden states have, counted and held alike."""
    vectors = {"RMSNorm": 1, "LayerNorm": 2, "NonParametricLayerNorm": 0}[normalization]
    plain, latent = (replace(zoo.load(name), normalization=normalization) for name in ("llama3_8b", "deepseek_v3"))
    normed = replace(plain, qk_layernorm=True)
    kinds = [(model, model.layer_kinds[0]) for model in (plain, normed, latent)]
    without, with_norms, mla = (layer(model, kind) for model, kind in kinds)
    assert with_norms.total - without.total == vectors * 2 * 128
    hidden, heads, rank, kv = 7168, 128, 1536, 512
    products = hidden * (rank + kv + 64 + heads * 128 + 3 * 18432) + heads * (rank * 192 + kv * 256)
    assert mla.total == products + vectors * (rank + kv + 2 * hidden)
    for model, kind in kinds:
        made = resolve(case(model, gpus=1), "nvidia", "hopper")
        assert lower.layer(kind, made).owned.total == layer(model, kind).total


def test_attention_to_blocks_is_dense_where_all_are_chosen_and_linear_beyond() -> None:
    """Closed forms of MoBA and NSA; the split of chosen keys over cp conserves work and gathers keys alone."""

    def cores(model: Model, seq: int) -> dict[str, float]:
        made = resolve(case(model, seq_length=seq), "nvidia", "hopper")
        found = lower.layer(model.layer_kinds[0], made).forward
        return {op.name: op.flops for op in found if isinstance(op, Attention)}

    plain = zoo.load("llama3_8b", num_layers=1)
    moba, nsa = (
        zoo.load("llama3_8b", num_layers=1, mixer_pattern="B", block_attention={"compressed": each})
        for each in (False, True)
    )
    assert cores(moba, 1024) == pytest.approx(cores(plain, 1024))
    far, farther = cores(moba, 65536), cores(moba, 131072)
    assert farther["core_attn"] / far["core_attn"] == pytest.approx(2, rel=0.01)
    assert far["core_attn"] < cores(plain, 65536)["core_attn"] / 30
    assert set(cores(nsa, 4096)) == {"core_attn", "blocks.pooled", "blocks.window"}
    assert count(nsa).total - count(moba).total == 3 * 32 * 4096
    chosen = zoo.load("deepseek_v3.2", num_layers=4)
    one, two = (lower.layer(chosen.layer_kinds[0], resolve(case(chosen, cp=cp), "nvidia", "hopper")) for cp in (1, 2))
    for phase in ("forward", "backward_input"):
        sums = [sum(op.flops for op in getattr(each, phase) if isinstance(op, Attention | Gemm)) for each in (one, two)]
        assert 2 * sums[1] == pytest.approx(sums[0], rel=0.01)
    sent = [op for op in two.forward if isinstance(op, Collective) and op.group == "cp"]
    assert [op.bytes for op in sent] == [2 * 4096 * (512 + 64 + 128)]
    one, two = (lower.layer(nsa.layer_kinds[0], resolve(case(nsa, cp=cp), "nvidia", "hopper")) for cp in (1, 2))
    for phase, nbytes in (("forward", [2]), ("backward_input", [2, 4])):
        sums = [sum(op.flops for op in getattr(each, phase) if isinstance(op, Attention | Gemm)) for each in (one, two)]
        assert 2 * sums[1] == pytest.approx(sums[0], rel=0.01)
        sent = [op.bytes for op in getattr(two, phase) if isinstance(op, Collective) and op.group == "cp"]
        assert sent == [width * 4096 * 2 * 8 * 128 for width in nbytes]
    split = resolve(case(moba, cp=2), "nvidia", "hopper")
    refusal(lower.layer, moba.layer_kinds[0], split, match="MoBA", kind=Unsupported)


def test_layers_that_share_a_block_hold_it_once() -> None:
    """Counted once, held once on a rank, reduced once; every use computes it; stages cannot share."""
    model = zoo.load("zamba2_7b")
    uses = [kind for kind in model.layer_kinds if isinstance(kind.mixer, SharedBlock)]
    assert [kind.mixer.block for kind in uses] == [i % 2 for i in range(13)]
    made = resolve(case(model), "nvidia", "hopper")
    first, other = (lower.layer(kind, made) for kind in uses[:2])
    block = sum(weight.elements for weight in first.weights if weight.storage)
    assert weight_set([(first.weights, 7), (other.weights, 6)]).total == 13 * first.held.total - 11 * block
    assert count(model).total == sum(layer(model, kind).total for kind in model.layer_kinds) + (
        32000 * 3584 + 3584 - 11 * block
    )
    assert work(first.forward) == work(other.forward)
    with pytest.raises(Unsupported, match="share"):
        lower.layer(uses[0], resolve(case(zoo.load("zamba2_7b"), pp=3), "nvidia", "hopper"))


def test_keys_and_values_of_another_layer() -> None:
    """Counted where they are made; no stage cuts a group; what nothing does with them is named."""
    shared, own = zoo.load("hunyuan_large"), zoo.load("hunyuan_large", cla_share_factor=1)
    products = 32 * 2 * 6400 * 8 * 80
    assert count(own).total - count(shared).total == products
    flops = [flops_per_token(case(model, ep=8), "megatron-2025-04") for model in (own, shared)]
    assert flops[0] - flops[1] == pytest.approx(6 * products)
    assert not problems(case(shared, gpus=256, tp=8, pp=32, ep=8))
    for layout in ({"pp": 64}, {"pp": 2, "pipeline_model_parallel_layout": "Et*31|t*33,L"}):
        (found,) = problems(case(shared, gpus=8 * layout["pp"], tp=8, **layout))
        assert "would read keys and values of another stage" in found.expected
    with pytest.raises(Unsupported, match="context parallelism"):
        lower.layer(shared.layer_kinds[1], resolve(case(shared, cp=2), "nvidia", "hopper"))
    (found,) = problems(case(zoo.load("deepseek_v3", cla_share_factor=2, mtp_num_layers=0), gpus=8))
    assert (found.key, "mla" in found.expected) == ("model.cla_share_factor", True)
    cluster = catalogue.default_cluster("h100_sxm")
    long, short = (project(case(model, gpus=256, tp=8, pp=8, ep=8), cluster) for model in (own, shared))
    assert 0.9 < short.step_seconds / long.step_seconds < 1


RECURRENT = ("nemotron_h_8b", "qwen3_next_80b_a3b", "kimi_linear_48b_a3b", "minimax_text_01", "lfm2_8b_a1b")


def test_the_products_of_a_recurrence_are_those_of_its_paper() -> None:
    """FLOP forward outside projections: chunked state-space duality with C = 128, the delta rule with C = 64."""
    closed = {
        "nemotron3_super": 4 * 128 * 8192 + 2 * 128 * 128 * 8 + 128 * 8192,
        "qwen3_next_80b_a3b": 2 * 32 * (5 * 64 * 128 + 3 * 128 * 128 + 64**2 / 3),
    }
    for name, flops in closed.items():
        made = resolve(case(zoo.load(name)), "nvidia", "hopper")
        kind = next(kind for kind in made.workload.model.layer_kinds if isinstance(kind.mixer, Recurrent))
        forward = scans(lower.layer(kind, made).forward)
        assert sum(op.flops for op in forward) == pytest.approx(4096 * flops)
        assert sum(op.steps for op in forward) == 4096 // (128 if "super" in name else 64)


@pytest.mark.parametrize("name", RECURRENT)
def test_splits_of_a_recurrence_conserve_its_work(name: str) -> None:
    """FLOP, weights and saved bytes times the ranks of tp and cp are those of one; the chain of steps stays as long."""
    model = zoo.load(name)
    whole = resolve(case(model), "nvidia", "hopper")
    alone = replace(next(kind for kind in model.layer_kinds if isinstance(kind.mixer, Recurrent)), mlp=None)
    one = lower.layer(alone, whole)
    for split in ({"tp": 2, "sequence_parallel": True}, {"cp": 2}):
        half = lower.layer(alone, resolve(case(model, **split), "nvidia", "hopper"))
        for phase in ("forward", "backward_input", "backward_weight"):
            a, b = getattr(one, phase), getattr(half, phase)
            # low-rank halves of gates are whole on every rank
            assert 2 * work(b) == pytest.approx(work(a), rel=0.02), (split, phase)
        assert [op.steps for op in scans(half.forward)] == [op.steps for op in scans(one.forward)]
        assert 2 * half.saved_bytes == pytest.approx(one.saved_bytes, rel=0.02)
        if "cp" in split:
            sent = [op.bytes for op in half.forward if isinstance(op, Collective)]
            assert len(sent) == 2
            assert min(sent) > 0
    longer = lower.layer(alone, resolve(case(model, seq_length=8192), "nvidia", "hopper"))
    assert sum(op.steps for op in scans(longer.forward)) == 2 * sum(op.steps for op in scans(one.forward))


def test_channels_of_a_selective_scan_that_ranks_divide_are_summed_once_each_way() -> None:
    """The product that reads all channels for step sizes and states has a partial sum on every rank."""
    model = zoo.load("jamba_1.5_mini")
    kind = next(kind for kind in model.layer_kinds if isinstance(kind.mixer, Mamba1))
    nbytes = 2.0 * (model.mamba1.dt_rank + 2 * model.mamba1.state_dim) * 4096  # type: ignore[union-attr]
    for tp, summed in ((1, []), (2, [nbytes])):
        block = lower.layer(replace(kind, mlp=None), resolve(case(model, tp=tp), "nvidia", "hopper"))
        for ops in (block.forward, block.backward_input):
            assert [op.bytes for op in ops if isinstance(op, Collective) and op.name.startswith("x_proj")] == summed


def test_heads_side_by_side_give_their_norm_two_gradients() -> None:
    """Attention and Mamba-2 read one norm: what both make of it is read, the sum written."""
    model = zoo.load("falcon_h1_0.5b")
    block = lower.layer(replace(model.layer_kinds[0], mlp=None), resolve(case(model), "nvidia", "hopper"))
    (add,) = (op for op in block.backward_input if op.name == "heads.grad_add")
    assert isinstance(add, Stream)
    assert (add.read, add.write) == (2 * 2 * model.hidden_size * 4096, 2 * model.hidden_size * 4096)


def work(ops: tuple[object, ...]) -> float:
    return sum(op.flops for op in ops if isinstance(op, Gemm | GroupedGemm | Scan))


def scans(ops: tuple[object, ...]) -> list[Scan]:
    return [op for op in ops if isinstance(op, Scan)]


def test_experts_in_a_latent_space_send_and_compute_less() -> None:
    """Dispatch carries the latent width; two projections of every token come on top."""
    model = zoo.load("nemotron3_super")
    assert model.moe is not None
    wide = zoo.load("nemotron3_super", moe={"moe_latent_size": None})
    routed = next(kind for kind in model.layer_kinds if kind.moe)
    narrow, full = (lower.layer(routed, resolve(case(each, ep=8), "nvidia", "hopper")) for each in (model, wide))
    sent, whole = (sum(op.bytes for op in each.forward if isinstance(op, Collective)) for each in (narrow, full))
    assert sent == pytest.approx(whole / 4, rel=0.05)
    experts, all_experts = (
        sum(op.flops for op in each.forward if isinstance(op, GroupedGemm)) for each in (narrow, full)
    )
    assert 4 * experts == pytest.approx(all_experts)
    latent = 2 * 2 * 4096 * 4096 * 1024
    assert sum(op.flops for op in narrow.forward if op.name.startswith("latent")) == latent


def test_megatron_counts_a_hybrid_step_as_its_logs_do() -> None:
    """GFLOP a token at 8192, as NVIDIA-NeMo/Megatron-Bridge's tables of tokens/s and TFLOP/s imply."""
    known = (("nemotron3_nano", 0, 22.28), ("nemotron3_super", 0, 75.4), ("nemotron3_super", 2, 84.7))
    for name, depths, published in known:
        job = case(zoo.load(name, mtp_num_layers=depths), seq_length=8192)
        assert flops_per_token(job, "megatron-2025-04") / 1e9 == pytest.approx(published, rel=1e-3)


def test_what_no_table_holds_is_said_and_costs() -> None:
    """Recurrent kernels stand among what was assumed; their time is bytes, FLOP or steps, whichever lasts longest."""
    cluster = catalogue.default_cluster("h100_sxm")
    made = project(case(zoo.load("nemotron_h_8b"), tp=8), cluster)
    assert any("mamba" in text for text in made.assumed)
    longer = project(case(zoo.load("nemotron_h_8b"), tp=8, seq_length=8192), cluster)
    assert longer.step_seconds > made.step_seconds
