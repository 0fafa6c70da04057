"""Layers of Megatron-Core, with Transformer Engine's parts where that is installed. Imported only when asked for.

Names are those of NVIDIA/Megatron-LM core 0.12 and later: ``transformer_config.TransformerConfig`` and
``MLATransformerConfig``, ``models.gpt.gpt_layer_specs``, ``spec_utils.build_module``, ``parallel_state``.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from importlib import util
from typing import Any

import torch
from torch import Tensor, nn

from projector.benchmark.layers_decoder import Embedding, Head
from projector.benchmark.layers_parallel import start_alone
from projector.benchmark.layers_parts import LayerSetup
from projector.errors import InputError, Problem, Unsupported
from projector.workload.model import LayerKind

_CORE = "megatron.core"
_NARROW = ("fp8", "mxfp8")
#: Arguments of its configurations that have the names of this package's fields.
_MODEL = (
    *("hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "normalization"),
    *("gated_linear_unit", "add_bias_linear", "add_qkv_bias", "qk_layernorm"),
)
_MLA = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")


def installed() -> bool:
    """Returns whether Megatron-Core can be imported here."""
    try:
        return util.find_spec(_CORE) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def fused(place: str) -> bool:
    """Returns whether Transformer Engine's parts run: it is installed, and ``place`` is a GPU."""
    return util.find_spec("transformer_engine") is not None and place.startswith("cuda")


def _on_gpu(place: str) -> bool:
    return place != "cpu"


def source(made: LayerSetup) -> MegatronSource:
    """Returns the parts of ``made`` out of Megatron-Core. Raises :class:`InputError` where it is not installed."""
    if not installed():
        expected = "Megatron-Core: pip install 'projector-harness[megatron]', or --layers torch"
        raise InputError([Problem("--layers", "", "megatron: megatron.core is not installed", expected)])
    return MegatronSource(made)


def runnable(made: LayerSetup) -> MegatronSource | None:
    """Returns Megatron-Core's parts where every kind of layer of ``made`` runs forward and backward on one micro-batch;
    None where one does not, since this release lacks a kernel or a layer."""
    try:
        megatron = source(made)
        for kind in dict.fromkeys(made.model.layer_kinds):
            x = torch.zeros(made.own_tokens, made.model.hidden_size, dtype=made.dtype, device=made.place)
            megatron.layer(kind)(x.requires_grad_(True)).sum().backward()
    except (Unsupported, InputError, RuntimeError, TypeError, ValueError, AssertionError, AttributeError, ImportError):
        return None
    return megatron


class MegatronSource:
    """Megatron-Core's transformer layers between this package's embedding and head (both vocabulary-parallel)."""

    def __init__(self, made: LayerSetup) -> None:
        """Sets up Megatron's process groups, once in a process. Raises :class:`Unsupported` for windows of attention."""
        self._made = made
        self.fused = fused(made.place)
        self.name = "megatron-core with transformer engine" if self.fused else "megatron-core"
        state = _core("parallel_state")
        if not state.model_parallel_is_initialized():
            start_alone(made.place.partition(":")[0])  # Megatron's groups need one to be part of
            recipe = made.workload.recipe
            sizes = {
                "tensor_model": recipe.tp,
                "pipeline_model": 1,
                "expert_model": recipe.ep,
                "expert_tensor": recipe.etp,
            }
            state.initialize_model_parallel(**{f"{name}_parallel_size": size for name, size in sizes.items()})
            if made.model.moe is not None:  # its router asks for a name that 0.16 defines with Transformer Engine alone
                vars(_core("transformer.moe.moe_utils")).setdefault("te_general_gemm", None)
            if made.place == "cpu":
                _stand_in_for_gpu()
            else:
                _core("tensor_parallel.random").model_parallel_cuda_manual_seed(1234)
        self._config = _config(made)
        self._next = 0

    def embedding(self) -> nn.Module:
        return Embedding(self._made)

    def head(self) -> nn.Module:
        return Head(self._made)

    def layer(self, kind: LayerKind) -> nn.Module:
        if not kind.plain:
            raise Unsupported("Megatron-Core layers that are not attention with an MLP in benchmark mode")
        if kind.window is not None:
            raise Unsupported("Megatron-Core layers with sliding-window attention in benchmark mode")
        if self._made.model.position_embedding_type == "alibi":
            raise Unsupported("ALiBi in Megatron-Core, which has none: try --layers torch")
        specs, model = _core("models.gpt.gpt_layer_specs"), self._made.model
        name = "get_gpt_layer_with_transformer_engine_spec" if self.fused else "get_gpt_layer_local_spec"
        make = getattr(specs, name)
        routed = model.moe if kind.moe else None
        grouped, ep = self._made.workload.recipe.moe_grouped_gemm != "loop", self._made.workload.recipe.ep
        if routed and self._made.place == "cpu" and (grouped or ep > 1):
            needs = "exchange between experts" if ep > 1 else "grouped product of experts"
            raise Unsupported(f"Megatron-Core's {needs}, which needs a GPU: try ep=1 and moe_grouped_gemm=loop")
        options = {
            "num_experts": routed.num_experts if routed else None,
            "moe_grouped_gemm": bool(routed) and grouped,
            "qk_layernorm": model.qk_layernorm,
            "multi_latent_attention": model.mla is not None,
        }
        names = inspect.signature(make).parameters
        spec = make(**{name: value for name, value in options.items() if name in names})
        self._next += 1
        build = _core("transformer.spec_utils").build_module
        try:
            layer = build(spec, config=self._config, layer_number=self._next)
        except TypeError as error:  # latent attention without Transformer Engine: its own takes no k_channels
            raise Unsupported(f"Megatron-Core's {kind.name} layer, which it cannot build here: {error}") from None
        return _Layer(layer, self._made, self._context).to(self._made.place)

    def _context(self) -> AbstractContextManager[Any]:
        """Returns the context of linears: 8 bits where the run has them."""
        narrow = self._made.workload.recipe.precision in _NARROW
        return _core("fp8_utils").get_fp8_context(self._config) if narrow else nullcontext()


class _Layer(nn.Module):
    """A layer of Megatron on [own tokens, hidden]: it wants [sequence, batch, hidden], and returns the context, too."""

    def __init__(self, layer: nn.Module, made: LayerSetup, context: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__()
        self.layer, self.batch, self.context = layer, made.workload.recipe.micro_batch_size, context
        length = made.length if made.place == "cpu" else 0  # the mask that Megatron makes itself lies on a GPU
        self.mask = torch.ones(length, length, dtype=torch.bool).triu(1)[None, None] if length else None
        self.rotary = None
        if made.model.position_embedding_type == "rope" and made.model.mla is None:
            module = _core("models.common.embeddings.rotary_pos_embedding").RotaryEmbedding
            options = {"kv_channels": made.model.kv_channels, "rotary_percent": 1.0}
            self.rotary = module(**options)(made.length).to(made.place)

    def forward(self, x: Tensor) -> Tensor:
        # tokens of a batch lie side by side: as good as any order for its time
        hidden = x.view(-1, self.batch, x.shape[-1])
        with self.context():
            out = self.layer(hidden, attention_mask=self.mask, rotary_pos_emb=self.rotary)
        hidden_out: Tensor = out[0] if isinstance(out, tuple) else out
        return hidden_out.view(-1, hidden_out.shape[-1])


def settings(made: LayerSetup) -> dict[str, Any]:
    """Returns the arguments of ``TransformerConfig`` (``MLATransformerConfig``) for the shrunk workload."""
    model, recipe, mla, moe = made.model, made.workload.recipe, made.model.mla, made.model.moe
    arguments: dict[str, Any] = {
        **{name: getattr(model, name) for name in _MODEL},
        "num_layers": max(1, model.num_layers),
        "activation_func": nn.functional.silu if model.gated_linear_unit else nn.functional.gelu,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bf16": made.dtype == torch.bfloat16,
        "params_dtype": made.dtype,
        "pipeline_dtype": made.dtype,
        "tensor_model_parallel_size": recipe.tp,
        "expert_model_parallel_size": recipe.ep,
        "expert_tensor_parallel_size": recipe.etp,
        "sequence_parallel": made.ranks.sequence_parallel,
        "bias_activation_fusion": bool(recipe.bias_activation_fusion),
        # Transformer Engine's kernel; that of latent attention is Megatron's own, for a GPU
        "apply_rope_fusion": bool(recipe.apply_rope_fusion) and (fused if mla is None else _on_gpu)(made.place),
        "use_cpu_initialization": made.place == "cpu",
        "gradient_accumulation_fusion": False,  # needs Megatron's own gradient buffers
    }
    if mla is not None:
        arguments |= {"multi_latent_attention": True, **{name: getattr(mla, name) for name in _MLA}}
    if moe is not None:
        arguments |= {
            "num_moe_experts": moe.num_experts,
            "moe_router_topk": min(moe.moe_router_topk, moe.num_experts),
            "moe_ffn_hidden_size": moe.moe_ffn_hidden_size,
            "moe_shared_expert_intermediate_size": moe.moe_shared_expert_intermediate_size or None,
            "moe_router_score_function": moe.moe_router_score_function,
            **_dispatcher_arguments(made),
            "moe_grouped_gemm": recipe.moe_grouped_gemm != "loop",
            "moe_router_load_balancing_type": "none",
            "moe_router_force_load_balancing": bool(recipe.moe_router_force_load_balancing),
        }
    # Transformer Engine's hybrid: 5 exponent bits for gradients, where blocks share no scale
    if recipe.precision in _NARROW:
        wide = recipe.fp8_recipe in ("blockwise", "mxfp8")
        arguments |= {"fp8": "e4m3" if wide else "hybrid", "fp8_recipe": recipe.fp8_recipe or "delayed"}
    return arguments


def _dispatcher_arguments(made: LayerSetup) -> dict[str, Any]:
    """Returns how tokens reach their experts, in the words of the recipe: the flex dispatcher refuses a group of one
    rank, and fused permutations need Transformer Engine."""
    recipe, fusable = made.workload.recipe, fused(made.place)
    asked = recipe.moe_token_dispatcher_type or "alltoall"
    kind = "alltoall" if asked == "flex" and recipe.ep * recipe.etp == 1 else asked
    library = recipe.moe_flex_dispatcher_backend
    if kind == "flex" and library not in (None, "deepep", "hybridep"):
        raise Unsupported(f"{library} in Megatron-Core's layers, which have no such dispatcher")
    return {
        "moe_token_dispatcher_type": kind,
        "moe_flex_dispatcher_backend": library or "deepep",
        "moe_permute_fusion": fusable and bool(recipe.moe_permute_fusion),
        "moe_router_fusion": fusable and bool(recipe.moe_router_fusion),
        "moe_router_dtype": recipe.moe_router_dtype if recipe.moe_router_dtype in ("fp32", "fp64") else None,
    }


def _config(made: LayerSetup) -> Any:
    module = _core("transformer.transformer_config")
    kind = module.MLATransformerConfig if made.model.mla is not None else module.TransformerConfig
    known = {field.name for field in fields(kind)}
    if made.workload.recipe.precision not in (*_NARROW, "bf16", "fp16", "fp32"):
        raise Unsupported(f"Megatron-Core layers in {made.workload.recipe.precision} in benchmark mode")
    if made.workload.recipe.precision in _NARROW and not {"fp8", "fp8_recipe"} <= known:
        raise Unsupported("8-bit layers of this release of Megatron-Core, which has no fp8_recipe")
    try:
        return kind(**{name: value for name, value in settings(made).items() if name in known})
    except ValueError as error:  # what this release or this build lacks, in its own words
        raise Unsupported(f"these layers of Megatron-Core: {error}") from None


def _core(name: str) -> Any:
    try:
        with warnings.catch_warnings():  # of optional packages that it goes without, a line each at its import
            warnings.simplefilter("ignore", UserWarning)
            return importlib.import_module(f"{_CORE}.{name}")
    except ImportError as error:
        expected = "a complete Megatron-Core: pip install 'projector-harness[megatron]', or --layers torch"
        raise InputError([Problem("--layers", "", f"megatron: {error}", expected)]) from None


class _NoStream:
    """A stream, or an event, where nothing runs beside anything."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, _: object) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, _: object = None) -> _NoStream:
        return self


def _stand_in_for_gpu() -> None:
    """Replaces what Megatron's modules ask a GPU for whatever tensors they are given: the tracker of random numbers
    that keeps no states, the place of their buffers, and streams of its dispatchers."""
    _core("tensor_parallel.random").initialize_rng_tracker(inference_rng_tracker=True)
    if not torch.cuda.is_available():
        torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
        torch.cuda.Stream = _NoStream  # type: ignore[assignment, misc]
        torch.cuda.current_stream = _NoStream  # type: ignore[assignment]
