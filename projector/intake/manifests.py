"""Shell inside YAML: Kubernetes manifests (PyTorchJob, MPIJob, JobSet, TrainJob, Job, …), files of other submitters
(``tables/jobs.yaml``) and FlagScale jobs, as the launch script that each of their containers runs.

What a container starts is written down as shell, with the variables that the manifest and its operator set; the script's
own reader does the rest. Meaning of the fields: Kubernetes API reference (Container, PodSpec); kubeflow/training-operator
pkg/controller.v1/pytorch/envvar.go; kubeflow/trainer TrainJob v1alpha1; argoproj/argo-workflows
docs/fields.md (Template); FlagOpen/FlagScale flagscale/runner.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware.catalogue import cluster, find_gpu, machine_of
from projector.intake.loaded import Loaded
from projector.intake.tables import whole
from projector.intake.values import at, section
from projector.io.documents import parse_yaml
from projector.io.files import read_text

_MAYBE = re.compile(
    r"""^\s*["']?(?:apiVersion|resources|environment|experiment|commands?|run|tasks)["']?:""", re.MULTILINE
)
_HEAD = re.compile(r"\s*(?:(?:#.*|---.*|\{\{.*)?\n\s*)*(?:apiVersion|kind):")  # a manifest's first word
_HELM = re.compile(r"\{\{-?\s*[.$(\w]")
_SHELL = re.compile(r"(?:.*/)?(?:ba|z|da|k)?sh$")
_GPUS = re.compile(r"(?:nvidia|amd)\.com/(?:gpu|mig-.*)$")
_HOSTFILE = "/etc/mpi/hostfile"
_OF_A_MACHINE = 8  # GPUs, where a job states those of all machines
_MANY = ("replicas", "parallelism", "numNodes", "size")  # how often a pod stands below a mapping that holds one


@dataclass(frozen=True)
class Manifest:
    """Holds a manifest as a launch. ``script``: shell that the containers run; ``cluster``: the machine or GPU asked for,
    ``said``: what states it; ``program``: the program that a FlagScale job starts."""

    script: str
    cluster: str | None = None
    said: str = ""
    program: str = ""

    def placed(self, loaded: Loaded) -> Loaded:
        """Returns ``loaded`` on the machine or GPU that the manifest asks for."""
        if self.cluster is None:
            return loaded
        return replace(loaded, cluster=self.cluster, assumed=(f"cluster={self.cluster} ({self.said})", *loaded.assumed))


@dataclass(frozen=True)
class _Pod:
    """Holds one kind of pod: ``spec`` with its containers, ``number``: factors of the pod count, as written."""

    spec: Mapping[str, Any]
    number: tuple[str, ...] = ()


def read(text: str, where: str) -> Manifest | None:
    """Returns the manifest in ``text``, None for other text. Raises :class:`InputError` for a manifest that is no YAML."""
    if text.startswith("#!") or not _MAYBE.search(text):
        return None
    if _HEAD.match(text) and _HELM.search(text):
        raise InputError([Problem(where, "", "a Helm template", "the manifest that `helm template` makes of it")])
    try:
        documents = _mappings([parse_yaml(one, where) for one in re.split(r"^---(?:\s.*)?$", text, flags=re.MULTILINE)])
    except InputError:
        if _HEAD.match(text):
            raise
        return None
    if any("apiVersion" in one and "kind" in one for one in documents):
        return _kubernetes(documents)
    if len(documents) == 1 and (job := _job_of(documents[0])):
        return job
    task, files = at(documents[0], "experiment", "task"), _listed(documents[0].get("defaults")) if documents else []
    trained = next((str(one["train"]) for one in _mappings(files) if one.get("train")), "")
    return _flagscale(documents[0], trained) if len(documents) == 1 and trained and at(task, "entrypoint") else None


def _kubernetes(documents: list[Mapping[str, Any]]) -> Manifest:
    maps = {
        str(at(one, "metadata", "name")): section(one, "data") for one in documents if one.get("kind") == "ConfigMap"
    }
    parts, selected = [], ""
    for document in documents:
        pods = list(_pods(document, ()))
        asking = [pod for pod in pods if any(_gpus(each) for each in _containers(pod.spec))] or pods
        nodes = [" * ".join(pod.number) or "1" for pod in asking]
        parts += _hostfile(document)
        operator = {"PET_NNODES": f"$(({' + '.join(nodes)}))", **_operator_variables(document, nodes)} if nodes else {}
        for pod in pods:
            parts += [_shell(one, pod.spec, maps, operator) for one in _containers(pod.spec)]
            selected = selected or _node_labels(pod.spec)
        parts += [str(at(document, "spec", "entrypoint") or "")] if document.get("kind") == "RayJob" else []
    return _on_labelled_machine(Manifest("\n".join(dict.fromkeys(part for part in parts if part))), selected)


def _hostfile(document: Mapping[str, Any]) -> list[str]:
    """Returns shell that writes the hosts of an MPIJob, as its operator does (kubeflow/mpi-operator pkg/controller)."""
    workers = at(document, "spec", "mpiReplicaSpecs", "Worker", "replicas")
    slots = at(document, "spec", "slotsPerWorker") or 1
    return [f"printf 'worker-%d slots={slots}\\n' $(seq {workers}) > {_HOSTFILE}"] if workers else []


def _operator_variables(document: Mapping[str, Any], nodes: list[str]) -> dict[str, str]:
    """Returns the variables by which the operator of a PyTorchJob, TrainJob or MPIJob tells pods how many processes to
    start, and how many pods there are where that is elastic."""
    if document.get("kind") == "MPIJob":
        return {"OMPI_MCA_orte_default_hostfile": _HOSTFILE}
    elastic = section(at(document, "spec"), "elasticPolicy")
    each = (
        at(document, "spec", "nprocPerNode")
        or at(document, "spec", "trainer", "numProcPerNode")
        or elastic.get("nProcPerNode")
    )
    if document.get("kind") != "PyTorchJob" and each is None:
        return {}
    least, most = elastic.get("minReplicas"), elastic.get("maxReplicas")
    if least and most and least != most:
        return {"PET_NNODES": f"{least}:{most}", **({"PET_NPROC_PER_NODE": str(each)} if each else {})}
    number = f"$(({' + '.join(nodes)}))"
    if each is None or str(each) in ("auto", "gpu", "cpu"):
        return {"WORLD_SIZE": number} | ({"PET_NPROC_PER_NODE": str(each)} if each else {})
    return {"WORLD_SIZE": f"$(({number} * {each}))", "PET_NPROC_PER_NODE": str(each)}


def _pods(value: Any, number: tuple[str, ...]) -> Iterator[_Pod]:
    """Yields each pod below ``value``: a mapping with ``containers``, or the ``trainer`` of a TrainJob, with its count."""
    if isinstance(value, Mapping):
        number = (*number, *(str(value[name]) for name in _MANY if isinstance(value.get(name), int | str)))
        if isinstance(value.get("containers"), list):
            yield _Pod(value, number)
            return
        for name, inside in value.items():
            if name in ("trainer", "container", "script") and isinstance(inside, Mapping) and "command" in inside:
                yield _Pod({**value, "containers": [inside]}, (*number, str(inside.get("numNodes", 1))))
            else:
                yield from _pods(inside, number)
    elif isinstance(value, list):
        for inside in value:
            yield from _pods(inside, number)


def _containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _mappings(spec["containers"])


def _gpus(container: Mapping[str, Any]) -> str:
    """Returns the number of GPUs that a container asks for, as written; empty without one."""
    for name in ("resources", "resourcesPerNode"):
        for kind in ("limits", "requests"):
            for key, value in section(at(container, name), kind).items():
                if _GPUS.match(str(key)):
                    return str(value)
    return ""


def _shell(
    one: Mapping[str, Any], spec: Mapping[str, Any], maps: Mapping[str, Any], operator: Mapping[str, str]
) -> str:
    """Returns what one container runs, as shell; empty where the image decides."""
    stated = {
        str(item.get("name")): str(item["value"]) for item in _mappings(one.get("env")) if item.get("value") is not None
    }
    words = [str(word) for key in ("command", "args") for word in _listed(one.get(key))]
    words += ["-c", str(one["source"])] if words and one.get("source") else []  # of an Argo script
    if not words:
        return ""
    words = [re.sub(r"\$\((\w+)\)", lambda m: f"${{{m[1]}}}" if m[1] in stated else m[0], word) for word in words]
    lines = [*_files(one, spec, maps), *(f"export {name}={_quoted(value)}" for name, value in operator.items())]
    lines += [f"export {name}={_quoted(value)}" for name, value in stated.items()]
    lines += [f"export CUDA_VISIBLE_DEVICES={listed}" for listed in [_seen(_gpus(one))] if listed]
    if one.get("workingDir"):
        lines.append(f"cd {_quoted(str(one['workingDir']))}")
    return "\n".join(["(", *lines, _command(words), ")"])


def _command(words: list[str]) -> str:
    """Returns a command as shell; the text behind ``bash -c`` already is shell."""
    flag = next((at for at, word in enumerate(words) if re.fullmatch(r"-[a-z]*c[a-z]*", word)), None)
    if flag is not None and flag + 1 < len(words) and (flag == 0 or _SHELL.match(words[0])):
        return words[flag + 1]
    if len(words) == 1 and re.search(r"\s", words[0]):
        return words[0]
    return " ".join(_quoted(word) for word in words)


def _files(one: Mapping[str, Any], spec: Mapping[str, Any], maps: Mapping[str, Any]) -> list[str]:
    """Returns shell that writes the scripts of a ConfigMap of the same file to where the container mounts them."""
    volumes = {item.get("name"): at(item, "configMap", "name") for item in _mappings(spec.get("volumes"))}
    writes = []
    for mount in _mappings(one.get("volumeMounts")):
        for name, text in maps.get(str(volumes.get(mount.get("name"))), {}).items():
            if mount.get("subPath") in (None, name):
                path = str(mount.get("mountPath"))
                path = path if mount.get("subPath") else f"{path.rstrip('/')}/{name}"
                writes.append(_written(path, text))
    return writes


def _written(path: str, text: str) -> str:
    """Returns shell that writes ``text`` to the file ``path``."""
    return f"cat > {_quoted(path)} <<'__END_OF_FILE__'\n{text}\n__END_OF_FILE__"


def _node_labels(spec: Mapping[str, Any]) -> str:
    """Returns the node labels that a pod requires, one ``key=value`` a line."""
    wanted = [f"{key}={value}" for key, value in section(spec, "nodeSelector").items()]
    of_nodes = at(
        spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"
    )
    terms = [item for term in _mappings(of_nodes) for item in _mappings(term.get("matchExpressions"))]
    one = [item for item in terms if item.get("operator") == "In" and len(_listed(item.get("values"))) == 1]
    wanted += [f"{item.get('key')}={_listed(item['values'])[0]}" for item in one]
    return "\n".join(wanted)


def _on_labelled_machine(manifest: Manifest, labels: str) -> Manifest:
    """Returns the manifest with the machine or GPU that labels name; a machine, which states its network, is first."""
    candidates = []
    for line in labels.splitlines():
        key, _, value = line.partition("=")
        if machine := machine_of(value, "gke" if key == "cloud.google.com/gke-accelerator" else "names"):
            candidates.append((0, machine, line))
        elif re.search(r"gpu|accelerator|instance", key) and (gpu := find_gpu(value)):
            candidates.append((1, gpu, line))
    return replace(manifest, cluster=min(candidates)[1], said=min(candidates)[2]) if candidates else manifest


def _job_of(document: Mapping[str, Any]) -> Manifest | None:
    """Returns the job of a submitter's file, as ``tables/jobs.yaml`` tells each; None for other documents."""
    for kind in whole("jobs").values():
        if all(_marked(document, mark) for mark in kind["marks"].split()):
            jobs = _mappings(document[kind["inside"]]) if "inside" in kind else [document]
            read = [_submitted(job, kind) for job in jobs if isinstance(job.get(kind["command"]), str | list)]
            if read:
                return replace(read[0], script="\n".join(job.script for job in read))
    return None


def _marked(document: Mapping[str, Any], mark: str) -> bool:
    key, _, value = mark.partition("=")
    found = at(document, *key.split("."))
    return found is not None and (not value or found == value)


def _submitted(job: Mapping[str, Any], kind: Mapping[str, Any]) -> Manifest:
    """Returns one job as shell: its variables, those of its submitter, the GPUs that its program sees, its command."""
    held = {
        key: next((found for name in str(names).split() if (found := at(job, *name.split("."))) is not None), None)
        for key, names in kind.items()
    }
    gpu, count = _gpu(held.get("gpu"))
    named, total = str(held.get("machine") or ""), held.get("total")
    machine = machine_of(named) or find_gpu(gpu)
    stated = held.get("each") or (min(total, _OF_A_MACHINE) if isinstance(total, int) else count)
    each = stated or (cluster(machine).gpus_per_host if machine and machine_of(named) else None)
    nodes = held.get("nodes") or (-(-total // each) if isinstance(total, int) and each else 1)
    total = total or (each and f"$(({nodes} * {each}))")
    processes = held.get("processes") and f"$(({nodes} * {held['processes']}))"
    hosts = f"$(seq {nodes} | sed s/^/node/)"
    values = {"nodes": nodes, "each": each, "total": total, "processes": processes, "hosts": hosts}
    made = {name: values.get(value.lstrip("$"), value) for name, value in kind["sets"].items()}
    made |= {"CUDA_VISIBLE_DEVICES": _seen(stated), **_variables(held.get("variables"))}
    lines = [f"export {name}={_quoted(str(value))}" for name, value in made.items() if value is not None]
    lines += [_written(kind["file"], json.dumps(job["parameters"]))] if "file" in kind and "parameters" in job else []
    shown = named if machine_of(named) else gpu
    return Manifest("\n".join([*lines, _text(held)]), machine, f"it asks for {shown}" if machine else "")


def _text(held: Mapping[str, Any]) -> str:
    """Returns the command of a job as shell: a text, lines of shell, or the words of a command and those behind it."""
    command, behind = held.get("command"), _listed(held.get("arguments"))
    words = [str(word) for word in (*_listed(command), *behind)]
    text = _command(words) if behind else "\n".join(words)
    inputs = held.get("inputs") or {}
    return re.sub(r"\$\{\{\s*inputs\.(\w+)\s*\}\}", lambda m: _input(inputs, m[1]), text)


def _gpu(value: Any) -> tuple[str, int | None]:
    """Returns the name and the number of the GPUs that a job asks for; one where only a name or a memory stands."""
    if isinstance(value, Mapping) and value:
        named = {"name", "count"} & {*value}
        pair = (value.get("name", ""), value.get("count", 1)) if named else next(iter(value.items()))
        value = ":".join(map(str, pair))
    parts = str(value).split(":") if value and not isinstance(value, list) else []
    counts = [part for part in parts if re.fullmatch(r"[\d.]+", part)]
    name = next((part for part in parts if re.match("[A-Za-z]", part)), "")
    if not parts or ".." in "".join(counts):
        return name, None
    return name, int(counts[-1]) if counts and counts[-1].isdigit() else 1


def _variables(value: Any) -> dict[str, Any]:
    """Returns variables that stand in a mapping, in ``NAME=value`` texts or in entries of a name and a value."""
    if isinstance(value, Mapping):
        return dict(value)
    pairs = {one.get("name", one.get("key")): one.get("value") for one in _mappings(value)}
    return {**pairs, **dict(text.split("=", 1) for text in _listed(value) if isinstance(text, str) and "=" in text)}


def _seen(count: Any) -> str | None:
    """Returns the ``CUDA_VISIBLE_DEVICES`` of ``count`` GPUs; None for what is no such number."""
    return ",".join(map(str, range(int(count)))) if str(count).isdigit() and 0 < int(count) <= 64 else None


def _flagscale(job: Mapping[str, Any], trained: str) -> Manifest:
    """Returns a FlagScale job's program with the arguments of ``train/NAME.yaml``, which Hydra merges into the job."""
    runner, envs = section(at(job, "experiment"), "runner"), section(at(job, "experiment"), "envs")
    lines = [f"export {name}={_quoted(str(value))}" for name, value in envs.items()]
    nodes = runner.get("nnodes") or ("$HOSTS" if runner.get("hostfile") else 1)
    sizes = f"--nnodes {nodes} --nproc_per_node {runner.get('nproc_per_node', 'gpu')}"
    program = str(at(job, "experiment", "task", "entrypoint"))
    script = "\n".join([*lines, f"torchrun {sizes} {program} --yaml-cfg train/{trained}.yaml"])
    return Manifest(script, program=posixpath.basename(program))


def program_beside(file: Path) -> str:
    """Returns the program of the FlagScale job whose arguments stand in the folder of ``file``; empty without a job."""
    folder = file.resolve().parent
    job = folder.parent / f"{folder.name}.yaml"
    try:
        manifest = read(read_text(job), str(job)) if job.is_file() else None
    except InputError:
        manifest = None
    return manifest.program if manifest else ""


def _input(inputs: Mapping[str, Any], name: str) -> str:
    value = inputs.get(name)
    return f"/inputs/{name}" if value is None or isinstance(value, Mapping) else str(value)


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in _listed(value) if isinstance(one, Mapping)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _quoted(word: str) -> str:
    """Quotes ``word`` in double quotes, so that ``${NAME}``, which ``envsubst`` fills in, stays a variable."""
    return '"' + re.sub(r'(["\\`])', r"\\\1", word) + '"'
