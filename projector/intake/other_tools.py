"""Configurations and command lines of trainers that nothing here reads: named as what they are, so that nobody looks for a
slip of the pen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from projector.errors import Unsupported
from projector.intake import megatron_cli, same_question
from projector.intake.shell.unknown import Unknowns
from projector.intake.spelling import normal

_OURS = ("recipe", "modules")  # a case, a Primus experiment
#: What they are, and the settings that only they have: words apart are all there, of words joined by ``|`` one is; a name
#: behind a dot stands in that section. The first that fits counts.
_TOOLS: tuple[tuple[str, str], ...] = (
    ("a FlagScale configuration", "experiment.runner experiment.task"),
    ("a FlagScale configuration", "system.tensor_model_parallel_size model data"),
    ("a verl configuration (reinforcement learning)", "actor_rollout_ref"),
    ("an AReaL configuration (reinforcement learning)", "actor gconfig|rollout|allocation_mode experiment_name"),
    ("a NeMo RL configuration", "policy loss_fn|grpo|dpo|sft|distillation|rm"),
    ("a ROLL configuration (reinforcement learning)", "actor_train|student exp_name|rollout_batch_size"),
    ("a levanter configuration", "trainer data|initialize_from_hf trainer.train_batch_size|trainer.mp"),
    ("a neuronx-distributed-training configuration", "distributed_strategy trainer"),
    ("a NeMo AutoModel configuration", "step_scheduler model|recipe"),
    ("a NeMo configuration", "trainer.devices trainer.num_nodes"),
    ("a NeMo configuration",
     "model.micro_batch_size|model.tensor_model_parallel_size|model.encoder_seq_length|model.mcore_gpt trainer|run"),
    ("a Megatron-Bridge configuration", "train.train_iters"),
    ("a nanotron configuration", "parallelism tokens.sequence_length|tokens.micro_batch_size|tokens.train_steps"),
    ("an OLMo configuration", "model.d_model model.n_layers tokenizer.identifier"),
    ("an LLM Foundry job", "integrations parameters"),
    ("an Axolotl configuration", "base_model datasets|adapter|micro_batch_size"),
    ("a LLaMA-Factory configuration", "model_name_or_path finetuning_type"),
    ("a configuration of Hugging Face's Trainer", "model_name_or_path|output_dir per_device_train_batch_size"),
    ("a configuration of Accelerate, which says nothing of the model", "distributed_type num_processes"),
    ("an LLM Foundry configuration", "fsdp_config|device_train_microbatch_size"),
    ("an ms-swift configuration", "model tuner_type|train_type|rlhf_type"),
    ("a MindSpeed-LLM configuration (FSDP2)", "model data parallel training"),
    ("a DeepSpeed configuration, which says nothing of the model",
     "zero_optimization|train_batch_size|train_micro_batch_size_per_gpu "
     "gradient_clipping|steps_per_print|optimizer|fp16|bf16|autotuning|gradient_accumulation_steps|"
     "train_micro_batch_size_per_gpu"),
)  # fmt: skip
_WAYS = "its run's log may be"
#: Programs (with their first word), or an option behind ``--``, that only one trainer has.
_COMMANDS: tuple[tuple[str, str], ...] = (
    ("ms-swift", r"swift (sft|pt|rlhf)\b|megatron (rlhf|export)\b|swift/cli/"),
    ("LLaMA-Factory", r"llama-?factory(?!-cli train)|llmtuner"),
    ("Axolotl", r"axolotl(?! train|\.cli\.train)"),
    ("LitGPT", r"litgpt\b(?! (?:pretrain|finetune))"),
    ("xtuner", r"xtuner\b"),
    ("levanter", r"levanter\b"),
    ("OpenRLHF", r"openrlhf\b"),
    ("open_lm", r"open_lm\b"),
    ("PaddlePaddle", r"paddle\."),
    ("NeMo AutoModel", r"automodel (finetune|pretrain)|.*nemo_automodel"),
    ("NeMo 2 or Megatron-Bridge, whose recipes are programs", r"nemo llm\b|.*scripts/performance/"),
    ("verl", r"verl\."),
    ("slime (reinforcement learning)", r"--rollout[_-]batch[_-]size"),
    ("Hugging Face's Trainer", r"--per_device_train_batch_size"),
    ("fms-fsdp", r"--model_variant"),
)


def _ways(tool: str, stated: Mapping[str, object]) -> str:
    return _WAYS if "reinforcement" in tool else f"{_WAYS}; {same_question.flags(stated)}"


def another_tool(program: str, words: Sequence[str]) -> str:
    """Why the command line ``words`` of ``program`` is not read, where another trainer takes it; else empty."""
    started = f"{program} {words[0] if words else ''}"
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    for name, marks in _COMMANDS:
        if any(re.fullmatch(marks, word) for word in options) or re.match(marks, started, re.IGNORECASE):
            return f"a command line of {name}: not read ({_ways(name, megatron_cli.parse(words, Unknowns()).args)})"
    return ""


def refuse_other_tools(content: Mapping[str, object], where: str) -> None:
    """Raises :class:`Unsupported` for the configuration of another trainer, with its name and what it builds on."""
    names = {normal(str(key)) for key in content}
    if any(name in names for name in _OURS) and "step_scheduler" not in names:
        return
    for key, inside in content.items():
        if isinstance(inside, Mapping):
            names |= {f"{normal(str(key))}.{normal(str(name))}" for name in inside}
    for name, marks in _TOOLS:
        if all(any(word in names for word in either.split("|")) for either in marks.split()):
            built_on = ", which extends files by its defaults" if content.get("defaults") else ""
            raise Unsupported(f"{where}: {name}{built_on}: not read ({_ways(name, content)})")
