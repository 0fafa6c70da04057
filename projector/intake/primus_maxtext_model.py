"""Architectures by MaxText's names and by its ``base_…`` arguments."""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import InputError, Problem, Unsupported
from projector.intake.primus_built import model_named
from projector.intake.primus_experiment import Experiment
from projector.intake.values import Reader
from projector.workload import zoo
from projector.workload.model import Model
from projector.workload.model_schema import model_from_mapping

#: Names of src/maxtext/configs/models that do not say what they are.
_NAMES: Mapping[str, str] = {
    "deepseek2-16b": "deepseek_v2_lite",
    "deepseek2-236b": "deepseek_v2",
    "deepseek3-671b": "deepseek_v3",
    "kimi-k2-1t": "kimi_k2",
    "llama3-405b": "llama3.1_405b",
    "llama4-17b-16e": "llama4_scout",
    "llama4-17b-128e": "llama4_maverick",
    "qwen3-480b-a35b": "qwen3_coder_480b_a35b",
}
#: Arguments of base.yml and the fields of a model they mean.
_FIELDS: Mapping[str, str] = {
    "base_num_decoder_layers": "num_layers",
    "base_emb_dim": "hidden_size",
    "base_mlp_dim": "ffn_hidden_size",
    "base_num_query_heads": "num_attention_heads",
    "base_num_kv_heads": "num_query_groups",
    "head_dim": "kv_channels",
    "vocab_size": "vocab_size",
    "mtp_num_layers": "mtp_num_layers",
}
_EXPERTS: Mapping[str, str] = {
    "num_experts": "num_experts",
    "num_experts_per_tok": "moe_router_topk",
    "base_moe_mlp_dim": "moe_ffn_hidden_size",
}
#: What base.yml gives a model that states nothing; each file of configs/models states all of them.
SIZES: Mapping[str, int] = {
    "base_num_decoder_layers": 16,
    "base_emb_dim": 2048,
    "base_mlp_dim": 7168,
    "base_num_query_heads": 16,
    "base_num_kv_heads": 16,
    "head_dim": 128,
    "vocab_size": 32000,
}
#: What base.yml says of architectures, which earlier presets of Primus repeat for every model: said of a model with a
#: name they mean nothing, and MaxText's own file of that model stands.
REPEATED: Mapping[str, tuple[object, ...]] = {
    **{word: (value,) for word, value in SIZES.items()},
    "num_experts": (1,),
    "num_experts_per_tok": (1,),
    "base_moe_mlp_dim": (-1, 7168),
    "mtp_num_layers": (0,),
    "logits_via_embedding": (False,),
}
#: Names that say something of an architecture.
MODEL_WORDS = (
    *_FIELDS,
    *_EXPERTS,
    *(
        "model_name",
        "global_parameter_scale",
        "shared_experts",
        "logits_via_embedding",
        "decoder_block",
        "mlp_activations",
        "use_qk_norm",
    ),
)
#: Styles of a decoder layer (``decoder_block``) that a plain transformer of this project is.
_PLAIN = ("llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "default", "gpt3")


def model_of(args: Reader, experiment: Experiment) -> Model:
    """The model that ``model_name`` means, changed by what is stated of it. Raises :class:`InputError`."""
    name = str(args.raw("model_name") or "default")
    if name != "default":
        args = Reader({key: value for key, value in experiment.settings.items() if _says(key, value, experiment)})
    stated: dict[str, object] = {field: args.integer(word) for word, field in _FIELDS.items()}
    experts = {field: args.integer(word) for word, field in _EXPERTS.items()}
    shared = args.integer("shared_experts")
    tied = args.flag("logits_via_embedding")
    stated["untie_embeddings_and_output_weights"] = None if tied is None else not tied
    changes = {field: value for field, value in stated.items() if value is not None}
    routed = {field: value for field, value in experts.items() if value is not None and value > 0}
    scale = args.integer("global_parameter_scale") or 1
    if name != "default":
        if scale > 1:
            raise Unsupported(f"global_parameter_scale {scale} of {name}: a published model made larger")
        known = _NAMES.get(name, "")
        if routed and (experts.get("num_experts") or 0) > 1:
            changes["moe"] = routed
        return model_named((known, name), experiment.where, "model_name", changes)
    if not changes and scale == 1:  # nothing but the file's name says what it is
        return model_named((experiment.model_name,), experiment.where, "model_name", {})
    changes = _scaled({**{_FIELDS[word]: value for word, value in SIZES.items()}, **changes}, scale, experiment.where)
    return _custom(args, experiment, changes, _scaled(routed, scale, experiment.where), shared or 0)


def _scaled(sizes: Mapping[str, object], scale: int, where: str) -> dict[str, object]:
    """``sizes`` of a model with about ``scale`` times the parameters: heads and MLP, then width, then layers double in
    turn (pyconfig.py ``get_individual_scales``)."""
    if scale < 1 or scale & (scale - 1):
        raise InputError([Problem(where, "global_parameter_scale", scale, "a power of two")])
    turns, rest = divmod(scale.bit_length() - 1, 3)
    wide = dict.fromkeys(
        ("num_attention_heads", "num_query_groups", "ffn_hidden_size", "moe_ffn_hidden_size"), turns + (rest > 0)
    )
    doublings = {**wide, "hidden_size": turns + (rest > 1), "num_layers": turns}
    return {
        key: value << doublings.get(key, 0) if type(value) is int and value > 0 else value
        for key, value in sizes.items()
    }


def _says(key: str, value: object, experiment: Experiment) -> bool:
    """Whether ``key`` says anything of a model that has a name: not where a preset repeats a default."""
    return value is not None and (key in experiment.overrides or value not in REPEATED.get(key, ()))


def _custom(
    args: Reader, experiment: Experiment, changes: Mapping[str, object], routed: Mapping[str, object], shared: int
) -> Model:
    style = args.word("decoder_block") or "llama2"
    if style not in _PLAIN:
        raise Unsupported(f"decoder_block {style} of a model that no published name gives")
    gated = args.raw("mlp_activations")
    mapping: dict[str, object] = {
        "gated_linear_unit": not isinstance(gated, (list, tuple)) or len(gated) > 1,
        "qk_layernorm": bool(args.flag("use_qk_norm")),
        "normalization": "LayerNorm" if style == "gpt3" else "RMSNorm",
        **changes,
        "name": experiment.model_name,
        "family": experiment.model_name,
    }
    count = routed.get("num_experts")
    if isinstance(count, int) and count > 1:
        width = routed.get("moe_ffn_hidden_size", mapping["ffn_hidden_size"])
        mapping["moe"] = {"moe_router_topk": 1, **routed, "moe_ffn_hidden_size": width}
        if shared and isinstance(width, int):
            mapping["moe"] |= {"moe_shared_expert_intermediate_size": shared * width}  # type: ignore[operator]
    alike = zoo.find(experiment.model_name)
    if alike is not None:
        mapping["family"] = zoo.load(alike).family
    model, problems = model_from_mapping(mapping, experiment.where, "")
    if model is None:
        raise InputError(problems)
    return model
