"""Writes a configuration as a file that starts it and that our readers read back to the same projection: ``--write``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from projector.cli.patch import as_flag, patched
from projector.cli.read_back import alike, differing, read_back, words_of
from projector.errors import InputError, Problem, Unsupported, collecting_into, raise_all
from projector.hardware import catalogue
from projector.hardware.types import Cluster
from projector.search import axes, launchable
from projector.workload import zoo
from projector.workload.layout import chunks, problems
from projector.workload.model import Model
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

if TYPE_CHECKING:
    from projector.cli.inputs import Case
    from projector.io.table import Line
    from projector.search.found import SearchResult

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
#: Frameworks that take arguments of Megatron-LM.
_MEGATRON = (
    *("megatron-lm", "megatron-bridge", "megatron-deepspeed", "mlperf"),
    *("primus", "nemo", "flagscale", "analytic"),
)
_DEVICES = ("cluster", "gpu")  # flags that name them
_UNSAID = ("name", "family", "source", "max_position_embeddings")  # of a model, and no change of a projection
_TRIED = 12  # configurations that are written instead where files have no words for the best
#: How Megatron-LM is told of stages that are not alike.
_ENDS = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
_COUNTED_AS_LAYERS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


#: What the table of flags does not know of ``--write``.
FLAGS = {"--write": {"help": f"{', '.join(NAMES)} (of --config), or a path"}}


def kind_of(word: str) -> str | None:
    """Returns the kind of file that a word or a path asks for, or None."""
    path = Path(word)
    named = {name: kind for kind, name in NAMES.items()}
    return word if word in NAMES else named.get(path.name) or _ENDINGS.get(path.suffix)


def _starts(kind: str, framework: str) -> bool:
    """Returns whether a file of ``kind`` can start a run of ``framework``, or is no file that starts one."""
    titan = framework.startswith("torchtitan")
    return kind in ("case", "patch") or (titan if kind == "torchtitan" else framework in _MEGATRON)


def write(words: Sequence[str], case: Case, load: Workload, options: argparse.Namespace) -> tuple[Path, ...]:
    """Writes ``load`` as each of ``words`` asks, all or none, and returns the paths. Raises :class:`InputError` for an
    unknown kind, and where what is read back is another run."""
    from projector.io.files import write_whole

    problems: list[Problem] = []
    texts: dict[Path, str] = {}
    for word in words:
        kind = kind_of(word)
        if kind is None or not _starts(kind, load.framework):
            expected = f"of {load.framework}: {', '.join(each for each in NAMES if _starts(each, load.framework))}"
            problems.append(Problem("--write", "", word, expected))
            continue
        path = Path(NAMES[kind] if word in NAMES else word)
        with collecting_into(problems):
            patch = kind == "patch"
            texts[path] = patched(case, load, options) if patch else _checked(kind, path.name, case, load, options)
    raise_all(problems)
    for path, text in texts.items():
        write_whole(path, text)
        if path.suffix == ".sh":
            path.chmod(0o755)
    return tuple(texts)


def write_best(case: Case, found: SearchResult, options: argparse.Namespace) -> tuple[tuple[Path, ...], str]:
    """Writes the best configuration of ``found`` for which the requested files have words, and says which it is where
    it is not the best of all. Raises :class:`InputError` as :func:`write` of the best, where the files have words for
    none that is nearly as good."""
    from projector.io.table import percent
    from projector.search.nodes import layout_of
    from projector.search.space import with_fields
    from projector.search.words import words

    refused: InputError | None = None
    ordered = sorted(found.hits, key=lambda hit: hit.value)
    best = {layout_of(hit.fields): hit for hit in reversed(ordered)}
    firsts = sorted(best.values(), key=lambda hit: hit.value)
    for hit in (*ordered[:_TRIED], *firsts[:_TRIED]) if options.write else ():
        try:
            paths = write(options.write, case, with_fields(found.space.base, hit.fields), options)
        except InputError as error:
            refused = refused or error
            if not all(problem.key for problem in error.problems):
                break
        else:
            behind = percent(hit.value / ordered[0].value - 1)
            return paths, f", with {words(hit.fields)} ({behind} behind): no word there for the best" if refused else ""
    if refused:
        raise refused
    return (), ""


def lines(paths: Sequence[Path], case: Case, options: argparse.Namespace, which: str = "") -> Iterator[Line]:
    """Yields what is said of the files that were written; ``which`` is the text of :func:`write_best`."""
    from projector.io.table import Line

    say = "; to project it on the same GPUs, say"
    flags = "" if _catalogued(case.cluster) else f"{say} {' '.join(words_of(options, _DEVICES))}"
    if paths:
        yield Line(f"Written: {', '.join(map(str, paths))}{which}{flags}")


def _checked(kind: str, name: str, case: Case, load: Workload, options: argparse.Namespace) -> str:
    """Returns the text of a file, once its projection is that of ``load``. What ``load`` leaves to its framework is
    stated where the reader takes it otherwise."""
    from projector.projection import project

    wanted = project(load, case.cluster, settings=case.settings)
    settled = wanted.resolved.workload.recipe
    stated = replace(load, recipe=_with_stages(kind, load, settled))
    for attempt in (1, 2):
        text = _with_comment(kind, _TEXTS[kind](stated, case.cluster), case, stated)
        try:
            workload = read_back(text, name, [] if _catalogued(case.cluster) else words_of(options, _DEVICES))
            again = project(workload, case.cluster, settings=case.settings)
        except (InputError, Unsupported) as error:
            raise _refused(kind, str(error)) from None
        if alike(wanted, again):
            return text
        names = differing(wanted, again)
        left_open = {name: getattr(settled, name) for name in names if getattr(stated.recipe, name) is None}
        if attempt == 2 or not left_open:
            names += differing(wanted, again, "model")
            named = ", ".join(each for each in names if each not in ("name", "family", "source"))
            raise _refused(kind, f"no word for {named}")
        stated = replace(stated, recipe=replace(stated.recipe, **left_open))
    raise AssertionError


def _with_stages(kind: str, load: Workload, settled: Recipe) -> Recipe:
    """Returns the recipe with stages as Megatron-LM is told them where layers do not divide: by the layers of the first
    and the last stage, else by a layout. NeMo knows no embedding or loss that counts as a layer. Sequence parallelism is
    stated where tensor-parallel overlap is: Megatron-LM does not start with that alone."""
    together: dict[str, Any] = {"sequence_parallel": settled.sequence_parallel} if load.recipe.tp_comm_overlap else {}
    recipe, model = replace(load.recipe, **together), load.model
    stages = chunks(model, settled)
    layers = [len(stage.layers) for stage in stages]
    counted = any(getattr(recipe, name) for name in _COUNTED_AS_LAYERS)
    stays = (counted and kind != "nemo") or bool(recipe.pipeline_model_parallel_layout)
    if kind in ("case", "torchtitan") or stays or len(set(layers)) == 1:
        return recipe
    plain: dict[str, Any] = dict.fromkeys(("allow_uneven_pipeline_split", "pipeline_remainder"))
    plain |= dict.fromkeys(_COUNTED_AS_LAYERS, False)
    ends = {name: sum(layers[at :: settled.pp]) for name, at in zip(_ENDS, (0, settled.pp - 1), strict=True)}
    layout = {"pipeline_model_parallel_layout": axes.spelled(layers, model.mtp_num_layers)}
    spellings = (replace(recipe, **(plain | words)) for words in (ends, layout))
    return next((each for each in spellings if not problems(model, each, "") and chunks(model, each) == stages), recipe)


def _with_comment(kind: str, text: str, case: Case, load: Workload) -> str:
    """Returns ``text`` below a comment of what files of its kind do not say and a projection depends on."""
    from projector.intake.detect import ABOVE
    from projector.io.table import values

    if kind == "case":
        return text
    name = load.model.name.replace(" ", "_")
    by_name = kind in ("primus", "torchtitan") and _is_zoo_model(load.model)
    facts = {
        **({"model": name} if by_name else {"name": name, "family": load.model.family}),
        "cluster": case.cluster.name if _catalogued(case.cluster) else None,
        **values(load, "gpus framework framework_date"),
    }
    words = " ".join(f"{key}={value}" for key, value in facts.items() if value)
    first, line, rest = text.partition("\n") if text.startswith("#!") else ("", "", text)
    return f"{first}{line}{ABOVE}{words}\n{rest}"


def _is_zoo_model(model: Model) -> bool:
    return model.name in zoo.names() and zoo.load(model.name) == model


def _catalogued(cluster: Cluster) -> bool:
    return cluster.name in catalogue.cluster_names() and catalogue.cluster(cluster.name) == cluster


def _refused(kind: str, why: str) -> InputError:
    expected = f"a run that {NAMES[kind]} can say; case can say any"
    return InputError([Problem("--write", kind, why.replace("\n", "; "), expected)])


def _torchrun(load: Workload, cluster: Cluster, rendezvous: str, least: int = 2) -> str:
    """Returns ``torchrun … pretrain_gpt.py …``, with one flag a line; ``rendezvous`` of ``least`` hosts and more."""
    hosts, gpus = _hosts_and_gpus(load, cluster)
    several = f"--nnodes {hosts} {rendezvous} " if hosts >= least else ""
    # NullTokenizer adds one that ends a document
    given = launchable.arguments(load) | {"vocab_size": load.model.vocab_size - 1} | _DATA
    flags = (as_flag(name, value) for name, value in launchable.switched(given) if value is not False)
    return " \\\n    ".join((f"torchrun --nproc-per-node {gpus} {several}pretrain_gpt.py", *flags)) + "\n"


#: What a script trains on where nobody says it.
_DATA: dict[str, Any] = {"mock_data": True, "tokenizer_type": "NullTokenizer", "train_iters": 50}
_DATA |= {"log_interval": 1, "lr": "1e-4", "log_throughput": True}


def _hosts_and_gpus(load: Workload, cluster: Cluster) -> tuple[int, int]:
    """Returns the number of hosts and the GPUs of each."""
    return -(-load.gpus // cluster.gpus_per_host), min(cluster.gpus_per_host, load.gpus)


def _script(load: Workload, cluster: Cluster) -> str:
    comment = f"# {load.model.name} on {load.gpus} GPUs; from the folder of Megatron-LM, once on each host"
    head = f"#!/bin/bash\n{comment}\nset -e\n"
    rendezvous = '--rdzv-backend c10d --rdzv-endpoint "${MASTER_ADDR:-localhost}:29500"'
    return f"{head}export CUDA_DEVICE_MAX_CONNECTIONS=1\n{_torchrun(load, cluster, rendezvous)}"


def _sbatch(load: Workload, cluster: Cluster) -> str:
    hosts, gpus = _hosts_and_gpus(load, cluster)
    sizes = {"job-name": load.model.name, "nodes": hosts, "ntasks-per-node": 1, "gpus-per-node": gpus}
    stated = "".join(f"#SBATCH --{name}={value}\n" for name, value in sizes.items())
    lines = "#SBATCH --exclusive\nset -e\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    first = 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    rendezvous = '--rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:29500"'
    return f"#!/bin/bash\n{stated}{lines}{first}\nsrun {_torchrun(load, cluster, rendezvous, least=1)}"


def _pytorchjob(load: Workload, cluster: Cluster) -> str:
    """Returns a PyTorchJob v1 of Kubeflow's training-operator, whose variables say the rendezvous."""
    hosts, gpus = _hosts_and_gpus(load, cluster)
    resource, nvidia = f"{cluster.gpu.vendor}.com/gpu", cluster.gpu.vendor == "nvidia"
    rendezvous = "--node-rank $RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
    container = {
        "name": "pytorch",
        "image": "nvcr.io/nvidia/nemo:dev" if nvidia else "rocm/megatron-lm:latest",
        "workingDir": "/opt/megatron-lm" if nvidia else "/workspace/Megatron-LM",
        "command": ["bash", "-c", _torchrun(load, cluster, rendezvous)],
        "env": [{"name": "CUDA_DEVICE_MAX_CONNECTIONS", "value": "1"}],
        "resources": {"limits": {resource: gpus}},
    }
    replicas = {"Master": 1, "Worker": hosts - 1}
    specs = {
        role: {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}
        for role, count in replicas.items()
        if count
    }
    name = load.model.name.replace("_", "-").replace(".", "-")
    head = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}}
    return _yaml({**head, "spec": {"pytorchReplicaSpecs": specs}})


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it stands, and repeats a value instead of referring to an earlier one."""

    def ignore_aliases(self, _: object) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def _yaml(content: Mapping[str, Any]) -> str:
    return str(yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, width=100))


def _primus(load: Workload, _: Cluster) -> str:
    experiment = launchable.experiment(load)
    if not _is_zoo_model(load.model):  # no preset has these sizes
        experiment["modules"]["pre_trainer"]["overrides"] |= launchable.architecture(load)
    return _yaml(experiment)


def _case(load: Workload, cluster: Cluster) -> str:
    """Returns a case of this project, with nothing that its framework decides."""
    from projector.workload.structure import to_mapping

    where = {"cluster": cluster.name, "gpus": load.gpus, "framework": load.framework}
    recipe = to_mapping(load.recipe)
    if load.model.moe is not None:
        recipe["etp"] = load.recipe.etp  # tp in some frameworks, where a case leaves it out
    return _yaml({"model": to_mapping(load.model), **where, "recipe": recipe})


_TEXTS: Mapping[str, Callable[[Workload, Cluster], str]] = {
    "case": _case,
    "run.sh": _script,
    "sbatch": _sbatch,
    "pytorchjob": _pytorchjob,
    "megatron": lambda load, _: _yaml(launchable.arguments(load)),
    "primus": _primus,
    "torchtitan": lambda load, _: launchable.toml(launchable.job(load)),
    "nemo": lambda load, cluster: _yaml(launchable.nemo(load, *_hosts_and_gpus(load, cluster))),
}
