"""Gemma 3n: its published sizes, its ``config.json``, what its streams and its shared keys cost, what is refused."""

from dataclasses import replace

from asked import refusal

from projector.errors import Unsupported
from projector.frameworks import resolve
from projector.frameworks.types import Resolved
from projector.hardware import catalogue
from projector.intake import huggingface
from projector.layers import lower
from projector.operators.module import Block
from projector.operators.types import Gemm
from projector.projection import project
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.parameters import count
from projector.workload.validate import problems
from projector.workload.workload import Workload
from tests.workloads import workload

E2B = zoo.load("gemma3n_e2b")


def text(model: Model, **changes: object) -> dict[str, object]:
    """The ``text_config`` of ``model`` as it is published."""
    layers = model.num_layers
    return {
        "model_type": "gemma3n_text", "num_hidden_layers": layers, "hidden_size": 2048, "head_dim": 256,
        "intermediate_size": [model.ffn_hidden_size] * layers, "num_attention_heads": 8, "num_key_value_heads": 2,
        "vocab_size": 262400, "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
        "laurel_rank": 64, "altup_num_inputs": 4, "altup_active_idx": 0, "altup_coef_clip": 120.0,
        "altup_correct_scale": True, "num_kv_shared_layers": model.num_kv_shared_layers, "sliding_window": 512,
        "layer_types": ["full_attention" if (i + 1) % 5 == 0 else "sliding_attention" for i in range(layers)],
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * (layers - 10), "max_position_embeddings": 32768,
        "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 10000.0,
        **changes,
    }  # fmt: skip


def case(model: Model, **fields: object) -> Workload:
    return workload(model, framework="pytorch", **{"global_batch_size": 8} | fields)


def made(model: Model, **fields: object) -> Resolved:
    return resolve(case(model, **fields), "nvidia", "hopper")


def products(block: Block) -> float:
    return sum(op.flops for op in block.forward if isinstance(op, Gemm))


def test_parameters_are_those_of_the_published_shapes() -> None:
    """Of one layer by hand from the class that holds the weights; towers and their projections are no part of them."""
    h, narrow = 2048, 256
    attention = h * (2 * 8 + 2 * 2) * 256 + 2 * 256
    altup = h + h + 4 * h + 4 * 16 + 4 * 4
    beside = 2 * h * 64 + h + 2 * h * narrow + h
    for name, layers, ffn in (("gemma3n_e2b", 30, 8192), ("gemma3n_e4b", 35, 16384)):
        model = zoo.load(name)
        one = attention + 3 * h * ffn + 4 * h + altup + beside
        ends = 262400 * h + 262144 * layers * narrow + h * layers * narrow + narrow + 6 * h * h + h
        assert count(model).main == layers * one + ends
        blocks = [lower.layer(kind, made(model)).held.total for kind in model.layer_kinds]
        rest = lower.embedding(made(model)).held.total + lower.head(made(model)).owned.total
        assert sum(blocks) + rest == count(model).main
    # totals of the published weights (huggingface.co, safetensors) hold the same two towers
    assert count(zoo.load("gemma3n_e4b")).main - count(E2B).main == 7_849_978_192 - 5_439_438_272


def test_config_json_is_the_zoo_s_and_the_towers_are_named() -> None:
    for name in ("gemma3n_e2b", "gemma3n_e4b"):
        model = zoo.load(name)
        found = huggingface.from_mapping(text(model), "config.json")
        assert found.model.layer_kinds == model.layer_kinds
        assert count(found.model) == count(model)
        short = {"intermediate_size": model.ffn_hidden_size, "layer_types": None, "activation_sparsity_pattern": None}
        assert huggingface.from_mapping(text(model, **short), "config.json").model == found.model
    whole = {"model_type": "gemma3n", "text_config": text(E2B), "vision_config": {"a": 1}, "audio_config": {"a": 1}}
    loaded = huggingface.from_mapping(whole, "config.json")
    assert "vision_config, audio_config left out" in loaded.assumed[0]
    few = huggingface.from_mapping(text(E2B, intermediate_size=[8192] * 3 + [4096]), "config.json").model
    (found,) = problems(case(few))
    assert (found.key, found.found) == ("model.per_layer.ffn_hidden_size", "4 entries")


def test_the_last_layers_read_the_last_layer_of_their_window_before_them() -> None:
    assert [E2B.kv_source(i) for i in (0, 19, 20, 24, 29)] == [None, None, 18, 19, 19]
    own = replace(E2B, num_kv_shared_layers=0)
    assert count(own) == count(E2B)
    (first, *_), last = E2B.layer_kinds, E2B.layer_kinds[-1]
    plain, shared = lower.layer(own.layer_kinds[-1], made(own)), lower.layer(last, made(E2B))
    assert products(plain) - products(shared) == 2 * 4096 * 2048 * 2 * 512
    assert plain.held.total == shared.held.total
    assert shared.saved_bytes < plain.saved_bytes
    assert first.name == "sparse_w512"
    cluster = catalogue.default_cluster("h200_sxm")
    assert project(case(E2B), cluster).step_seconds < project(case(own), cluster).step_seconds


def test_every_piece_costs_time_and_memory_of_its_own() -> None:
    """From Gemma 3n with nothing of it piece by piece: parameters, saved bytes, seconds and the stage's message rise."""
    pieces: dict[str, object] = {
        "laurel_rank": 64, "per_layer": E2B.per_layer, "hidden_size_per_layer_input": 256, "altup_num_inputs": 4,
    }  # fmt: skip
    bare = replace(E2B, num_kv_shared_layers=0, altup_num_inputs=0, laurel_rank=0, hidden_size_per_layer_input=0,
                   vocab_size_per_layer_input=0, per_layer=replace(E2B.per_layer, sparse_activation=()))  # fmt: skip
    cluster, model = catalogue.default_cluster("h200_sxm"), bare
    seconds, saved = (
        [project(case(bare), cluster).step_seconds],
        [lower.layer(bare.layer_kinds[0], made(bare)).saved_bytes],
    )
    for name, value in pieces.items():
        more = {"vocab_size_per_layer_input": 262144} if name == "hidden_size_per_layer_input" else {}
        model = replace(model, **{name: value}, **more)  # type: ignore[arg-type]
        seconds.append(project(case(model), cluster).step_seconds)
        saved.append(lower.layer(model.layer_kinds[0], made(model)).saved_bytes)
    assert seconds == sorted(seconds)
    assert saved == sorted(saved)
    assert len(set(seconds)) == len(set(saved)) == 5
    assert (bare.residual_width, model.residual_width) == (2048, 4 * 2048)


def test_what_nothing_does_with_it_is_refused() -> None:
    (found,) = problems(case(E2B, pp=2, pipeline_model_parallel_layout="Et*20|t*10,L"))
    assert "would read keys and values of another stage" in found.expected
    two, split = made(E2B, pp=2), made(E2B, cp=2)
    refusal(lower.layer, E2B.layer_kinds[0], two, match="pipeline stages", kind=Unsupported)
    refusal(lower.layer, E2B.layer_kinds[-1], split, match="context parallelism", kind=Unsupported)
    wrong = replace(E2B, altup_num_inputs=1, vocab_size_per_layer_input=0, num_kv_shared_layers=30)
    assert {each.key for each in problems(case(wrong))} == {
        f"model.{name}" for name in ("altup_num_inputs", "hidden_size_per_layer_input", "num_kv_shared_layers")
    }
