"""``--write``: a configuration as a file that starts it, read back by the readers of such files to the same projection."""

from __future__ import annotations

import argparse
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from projector.cli.patch import patched
from projector.errors import InputError, Problem, Unsupported
from projector.hardware.types import Cluster
from projector.workload.declared import about_of
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

if TYPE_CHECKING:
    from projector.cli.inputs import Case
    from projector.io.table import Line

#: Kinds of files by the word that asks for one, with the name that it gets; a path of such an ending asks for its kind, too.
NAMES: Mapping[str, str] = {
    "case": "case.yaml",
    "run.sh": "run.sh",
    "sbatch": "run.sbatch",
    "pytorchjob": "pytorchjob.yaml",
    "megatron": "megatron.yaml",
    "primus": "primus.yaml",
    "torchtitan": "torchtitan.toml",
    "nemo": "nemo.yaml",
    "patch": "layout.patch",
}
_ENDINGS = {".sh": "run.sh", ".sbatch": "sbatch", ".patch": "patch", ".diff": "patch"}
_HELP = (
    "case, run.sh, sbatch, pytorchjob, megatron, primus, torchtitan, nemo: what starts it; patch: as a change of --config; "
    "or a path"
)
#: Frameworks that take arguments of Megatron-LM.
_MEGATRON = (
    "megatron-lm",
    "megatron-bridge",
    "megatron-deepspeed",
    "primus",
    "nemo",
    "mlperf",
    "flagscale",
    "analytic",
)
#: Fields of a model that are arguments of Megatron-LM as they stand.
_PLAIN = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels"),
    *("max_position_embeddings", "vocab_size"),
)
_EXPERTS = (
    *("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"),
    *("moe_router_num_groups", "moe_router_group_topk", "moe_router_score_function", "moe_router_enable_expert_bias"),
)
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_SWITCHES = ("qk_layernorm", "add_qkv_bias", "untie_embeddings_and_output_weights")


def add_write(group: Any) -> None:
    group.add_argument("--write", action="append", default=[], metavar="KIND|FILE", help=_HELP)


def kind_of(word: str) -> str | None:
    """The kind of file that a word or a path asks for."""
    path = Path(word)
    named = {name: kind for kind, name in NAMES.items()}
    return word if word in NAMES else named.get(path.name) or _ENDINGS.get(path.suffix)


def write(words: Sequence[str], case: Case, load: Workload, options: argparse.Namespace) -> tuple[Path, ...]:
    """Writes ``load`` as each of ``words`` asks, all or none. Raises :class:`InputError` for an unknown kind, and where
    what is read back is another run."""
    from projector.errors import nearest
    from projector.io.files import write_whole

    problems = [Problem("--write", "", word, nearest(word, tuple(NAMES))) for word in words if kind_of(word) is None]
    made: dict[Path, str] = {}
    for word in () if problems else words:
        kind = kind_of(word)
        assert kind is not None
        runs = load.framework.startswith("torchtitan") if kind == "torchtitan" else load.framework in _MEGATRON
        if kind not in ("case", "patch") and not runs:
            problems.append(
                Problem("--write", "", word, f"a file that starts a run of {load.framework}; case is of any")
            )
            continue
        path = Path(NAMES[kind] if word in NAMES else word)
        try:
            own = kind == "patch"
            made[path] = patched(case, load, options) if own else _checked(kind, path.name, case, load, options)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    for path, text in made.items():
        write_whole(path, text)
        if path.suffix == ".sh":
            path.chmod(0o755)
    return tuple(made)


def lines(paths: Sequence[Path], case: Case) -> Iterator[Line]:
    """What is said of the files that were written. One that another framework reads has its defaults."""
    from projector.io.table import Line

    framework = case.workload.framework
    foreign = [str(path) for path in paths if (kind := kind_of(path.name)) in ("primus", "nemo") and kind != framework]
    note = f"; to project {' and '.join(foreign)} as shown here, say --framework {framework}" if foreign else ""
    if paths:
        yield Line(f"Written: {', '.join(map(str, paths))}{note}")


def _checked(kind: str, name: str, case: Case, load: Workload, options: argparse.Namespace) -> str:
    """The text, once its projection is that of ``load``. What ``load`` leaves to its framework is stated where the reader
    takes it otherwise."""
    from projector.projection import project

    wanted = project(load, case.cluster, settings=case.settings)
    text, stated = _TEXTS[kind](load, case.cluster), load.recipe
    for attempt in (1, 2):
        again = _again(text, kind, name, case, load, options)
        try:
            found = project(again, case.cluster, settings=case.settings)
        except (InputError, Unsupported) as error:
            raise _refused(kind, str(error)) from None
        pairs = ((wanted.step_seconds, found.step_seconds), (wanted.memory.allocated, found.memory.allocated))
        if all(abs(a - b) <= 1e-9 * a for a, b in pairs):
            return text
        ours, theirs = (made.resolved.workload for made in (wanted, found))
        other = [f.name for f in fields(Recipe) if getattr(ours.recipe, f.name) != getattr(theirs.recipe, f.name)]
        open_ = {name: getattr(ours.recipe, name) for name in other if getattr(load.recipe, name) is None}
        if attempt == 2 or not open_:
            other += [f.name for f in fields(Model) if getattr(ours.model, f.name) != getattr(theirs.model, f.name)]
            named = ", ".join(each for each in other if each not in ("name", "family", "source"))
            raise _refused(kind, f"{named}: another value when it is read back")
        stated = replace(load.recipe, **open_)
        text = _TEXTS[kind](replace(load, recipe=stated), case.cluster)
    raise AssertionError


def _again(text: str, kind: str, name: str, case: Case, load: Workload, options: argparse.Namespace) -> Workload:
    """``text`` as our readers take it, on the same GPUs."""
    from projector.cli.inputs import read_case
    from projector.cli.options import selection
    from projector.cli.parser import parse

    where = [w for n in ("cluster", "gpu") if (v := getattr(options, n)) for w in (f"--{n}", v)]
    more = ["--model", load.model.name] if kind in ("primus", "torchtitan") else []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text(text, encoding="utf-8")
        words = ["--config", str(file), *(where or ["--cluster", case.cluster.name]), *more]
        try:
            return read_case(
                parse(selection(), [*words, "--gpus", str(load.gpus), "--framework", load.framework])
            ).workload
        except (InputError, Unsupported) as error:
            raise _refused(kind, str(error).replace(str(file), name)) from None


def _refused(kind: str, why: str) -> InputError:
    return InputError([Problem("--write", kind, why.replace("\n", "; "), "a run that this kind of file can say")])


def arguments(load: Workload) -> dict[str, Any]:
    """Megatron-LM's arguments of model and recipe, by name."""
    from projector.search import launchable

    none = {"attention_dropout": 0.0, "hidden_dropout": 0.0}  # Megatron-LM's own are 0.1
    made = {**_architecture(load.model), **none, **launchable.arguments(load)}
    if made.get("recompute_granularity") == "full" and load.recipe.recompute_method is None:
        made |= {"recompute_method": "uniform", "recompute_num_layers": load.recipe.recompute_num_layers or 1}
    if load.recipe.moe_grouped_gemm not in (None, "loop"):
        made |= {"moe_grouped_gemm": True, "moe_use_legacy_grouped_gemm": load.recipe.moe_grouped_gemm == "legacy"}
    return made


def _architecture(model: Model) -> dict[str, Any]:
    made = {name: getattr(model, name) for name in _PLAIN}
    made |= {name: True for name in _SWITCHES if getattr(model, name)}
    made |= {"normalization": model.normalization, "position_embedding_type": model.position_embedding_type}
    made |= {"swiglu": model.gated_linear_unit, "disable_bias_linear": not model.add_bias_linear}
    if model.num_query_groups != model.num_attention_heads:
        made |= {"group_query_attention": True, "num_query_groups": model.num_query_groups}
    if model.moe is not None:
        made |= {name: value for name in _EXPERTS if (value := getattr(model.moe, name))}  # size 0 builds experts
        freq = [int(each) for each in model.moe.moe_layer_freq]
        made["moe_layer_freq"] = f"[{','.join(map(str, freq))}]" if not all(freq) else None
    if model.mla is not None:
        made |= {"multi_latent_attention": True, **{name: getattr(model.mla, name) for name in _LATENT}}
    if model.mtp_num_layers:
        made["mtp_num_layers"] = model.mtp_num_layers
    return {name: value for name, value in made.items() if value is not None and value is not False}


def _torchrun(load: Workload, cluster: Cluster, rendezvous: str) -> str:
    """``torchrun … pretrain_gpt.py …``, a flag a line."""
    words = [f"torchrun --nproc-per-node {min(cluster.gpus_per_host, load.gpus)} {rendezvous}pretrain_gpt.py"]
    given = arguments(load) | {"vocab_size": load.model.vocab_size - 1}  # NullTokenizer adds one that ends a document
    for name, value in given.items():
        if value is not False:
            values = [] if value is True else value if isinstance(value, list) else [value]
            words.append(" ".join((f"--{name.replace('_', '-')}", *(shlex.quote(str(each)) for each in values))))
    data = (
        "--mock-data",
        "--tokenizer-type NullTokenizer",
        "--train-iters 50",
        "--log-interval 1",
        "--lr 1e-4",
        "--log-throughput",
    )
    return " \\\n    ".join((*words, *data)) + "\n"


def _hosts(load: Workload, cluster: Cluster) -> int:
    return -(-load.gpus // cluster.gpus_per_host)


def _script(load: Workload, cluster: Cluster) -> str:
    what = f"# {load.model.name} on {load.gpus} GPUs; from the folder of Megatron-LM, once on each host"
    head = f"#!/bin/bash\n{what}\nset -e\n"
    hosts = _hosts(load, cluster)
    join = (
        ""
        if hosts == 1
        else f'--nnodes {hosts} --rdzv-backend c10d --rdzv-endpoint "${{MASTER_ADDR:-localhost}}:29500" '
    )
    return f"{head}export CUDA_DEVICE_MAX_CONNECTIONS=1\n{_torchrun(load, cluster, join)}"


def _sbatch(load: Workload, cluster: Cluster) -> str:
    hosts, each = _hosts(load, cluster), min(cluster.gpus_per_host, load.gpus)
    sizes = {"job-name": load.model.name, "nodes": hosts, "ntasks-per-node": 1, "gpus-per-node": each}
    head = (
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}" for name, value in sizes.items()),
        "#SBATCH --exclusive",
        "set -e",
    )
    head += ("export CUDA_DEVICE_MAX_CONNECTIONS=1",)
    head += ('head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', "")
    join = f'--nnodes {hosts} --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:29500" '
    return "\n".join(head) + "srun " + _torchrun(load, cluster, join)


def _pytorchjob(load: Workload, cluster: Cluster) -> str:
    """Kubeflow's training-operator, PyTorchJob v1: its variables say the rendezvous."""
    hosts, each = _hosts(load, cluster), min(cluster.gpus_per_host, load.gpus)
    resource, nvidia = f"{cluster.gpu.vendor}.com/gpu", cluster.gpu.vendor == "nvidia"
    join = (
        ""
        if hosts == 1
        else f"--nnodes {hosts} --node-rank $RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT "
    )
    container = {
        "name": "pytorch",
        "image": "nvcr.io/nvidia/nemo:dev" if nvidia else "rocm/megatron-lm:latest",
        "workingDir": "/opt/megatron-lm" if nvidia else "/workspace/Megatron-LM",
        "command": ["bash", "-c", _torchrun(load, cluster, join)],
        "env": [{"name": "CUDA_DEVICE_MAX_CONNECTIONS", "value": "1"}],
        "resources": {"limits": {resource: each}},
    }
    replicas = {"Master": 1, "Worker": hosts - 1}
    specs = {
        role: {"replicas": n, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}
        for role, n in replicas.items()
        if n
    }
    name = load.model.name.replace("_", "-").replace(".", "-")
    head = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}}
    return _yaml({**head, "spec": {"pytorchReplicaSpecs": specs}})


def _nemo(load: Workload, cluster: Cluster) -> str:
    """NeMo 1's configuration of a GPT (examples/nlp/language_modeling/conf/megatron_gpt_config.yaml)."""
    from projector.intake.dialect import dialect

    renamed = {ours: theirs[0] for ours, theirs in dialect("nemo").names.items()}
    given, recipe = _architecture(load.model), load.recipe
    swiglu, bias = given.pop("swiglu", False), not given.pop("disable_bias_linear", False)
    given.pop("group_query_attention", None)
    model: dict[str, Any] = {renamed.get(name, name): value for name, value in given.items()}
    model |= {
        "normalization": str(load.model.normalization).lower(),
        "activation": "swiglu" if swiglu else "gelu",
        "bias": bias,
    }
    model["share_embeddings_and_output_weights"] = not model.pop("untie_embeddings_and_output_weights", False)
    top: dict[str, Any] = {"num_nodes": _hosts(load, cluster), "devices": min(cluster.gpus_per_host, load.gpus)}
    top["precision"] = {"fp32": 32, "fp16": "16-mixed"}.get(recipe.precision, "bf16-mixed")
    content: dict[str, Any] = {"trainer": top, "model": model}
    for name, told in about_of(Recipe).items():
        value, theirs = getattr(recipe, name), told.names.get("nemo", ())
        if theirs and value is not None:
            place = content if theirs[0].startswith("trainer.") else model
            *outer, last = theirs[0].removeprefix("model.").split(".")
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = list(value) if isinstance(value, tuple) else value
    model["fp8"] = recipe.precision == "fp8"
    optim = model.setdefault("optim", {})
    optim["name"] = "distributed_fused_adam" if recipe.data_parallel_sharding == "optim" else "fused_adam"
    optim |= {
        "overlap_grad_sync": bool(recipe.overlap_grad_reduce),
        "overlap_param_sync": bool(recipe.overlap_param_gather),
    }
    return _yaml(content)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it stands, and nothing as a reference to what stands above."""

    def ignore_aliases(self, _: object) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def _yaml(content: Mapping[str, Any]) -> str:
    return str(yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, width=100))


def _primus(load: Workload, _: Cluster) -> str:
    from projector.search import launchable

    return _yaml(launchable.experiment(load))


def _torchtitan(load: Workload, _: Cluster) -> str:
    from projector.search import launchable

    return launchable.toml(launchable.job(load))


def _case(load: Workload, cluster: Cluster) -> str:
    """A case of this project, with nothing that its framework decides."""
    from projector.workload.model_schema import model_to_mapping
    from projector.workload.schema import recipe_to_mapping

    where = {"cluster": cluster.name, "gpus": load.gpus, "framework": load.framework}
    recipe = recipe_to_mapping(load.recipe)
    if load.model.moe is not None:
        recipe["etp"] = load.recipe.etp  # tp in some frameworks, where a case leaves it out
    return _yaml({"model": model_to_mapping(load.model), **where, "recipe": recipe})


_TEXTS: Mapping[str, Callable[[Workload, Cluster], str]] = {
    "case": _case,
    "run.sh": _script,
    "sbatch": _sbatch,
    "pytorchjob": _pytorchjob,
    "megatron": lambda load, _: _yaml(arguments(load)),
    "primus": _primus,
    "torchtitan": _torchtitan,
    "nemo": _nemo,
}
