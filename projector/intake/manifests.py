"""Shell inside YAML: Kubernetes manifests (PyTorchJob, MPIJob, JobSet, TrainJob, Job, …), SkyPilot tasks, AzureML and
FlagScale jobs, as the launch script that each of their containers runs.

What a container starts is written down as shell, with the variables that the manifest and its operator set; the script's
own reader does the rest. Meaning of the fields: Kubernetes API reference (Container, PodSpec); kubeflow/training-operator
pkg/controller.v1/pytorch/envvar.go; kubeflow/trainer TrainJob v1alpha1; SkyPilot and AzureML, references of their YAML;
FlagOpen/FlagScale flagscale/runner.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.hardware.catalogue import find_gpu, machine_of
from projector.intake.loaded import Loaded
from projector.intake.values import at, section
from projector.io.documents import parse_yaml
from projector.io.files import read_text

_MAYBE = re.compile(r"""^\s*["']?(?:apiVersion|resources|environment|experiment)["']?:""", re.MULTILINE)
_HEAD = re.compile(r"\s*(?:(?:#.*|---.*|\{\{.*)?\n\s*)*(?:apiVersion|kind):")  # a manifest's first word
_HELM = re.compile(r"\{\{-?\s*[.$(\w]")
_SHELL = re.compile(r"(?:.*/)?(?:ba|z|da|k)?sh$")
_GPUS = re.compile(r"(?:nvidia|amd)\.com/(?:gpu|mig-.*)$")
_HOSTFILE = "/etc/mpi/hostfile"
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
    if len(documents) == 1 and isinstance(documents[0].get("run"), str) and "resources" in documents[0]:
        return _skypilot(documents[0])
    if len(documents) == 1 and isinstance(documents[0].get("command"), str) and "environment" in documents[0]:
        return _azure(documents[0])
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
            if name == "trainer" and isinstance(inside, Mapping) and "command" in inside:
                yield _Pod({"containers": [inside]}, (*number, str(inside.get("numNodes", 1))))
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
    if not words:
        return ""
    words = [re.sub(r"\$\((\w+)\)", lambda m: f"${{{m[1]}}}" if m[1] in stated else m[0], word) for word in words]
    lines = [*_files(one, spec, maps), *(f"export {name}={_quoted(value)}" for name, value in operator.items())]
    lines += [f"export {name}={_quoted(value)}" for name, value in stated.items()]
    gpus = _gpus(one)
    if gpus.isdigit() and 0 < int(gpus) <= 64:
        lines.append(f"export CUDA_VISIBLE_DEVICES={','.join(map(str, range(int(gpus))))}")
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
                writes.append(f"cat > {_quoted(path)} <<'__END_OF_FILE__'\n{text}\n__END_OF_FILE__")
    return writes


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


def _skypilot(task: Mapping[str, Any]) -> Manifest:
    kind, _, count = _accelerators(at(task, "resources", "accelerators")).partition(":")
    nodes = str(task.get("num_nodes", 1))
    known = {"SKYPILOT_NUM_NODES": nodes, "SKYPILOT_NUM_GPUS_PER_NODE": count or "1", **section(task, "envs")}
    lines = [f"export {name}={_quoted(str(value))}" for name, value in known.items() if value is not None]
    lines.append("export SKYPILOT_NODE_IPS=\"$(printf 'node%d\\n' $(seq $SKYPILOT_NUM_NODES))\"")
    machine = machine_of(str(at(task, "resources", "instance_type") or "")) or find_gpu(kind)
    return Manifest("\n".join([*lines, str(task.get("run") or "")]), machine, f"resources {kind}" if machine else "")


def _accelerators(value: Any) -> str:
    if isinstance(value, Mapping):
        return ":".join(map(str, next(iter(value.items()), ("",))))
    return str(value or "")


def _azure(job: Mapping[str, Any]) -> Manifest:
    each, nodes = at(job, "distribution", "process_count_per_instance"), at(job, "resources", "instance_count") or 1
    lines = [f"export {name}={_quoted(str(value))}" for name, value in section(job, "environment_variables").items()]
    lines += [f"export WORLD_SIZE=$(({nodes} * {each}))"] if each else []
    inputs = section(job, "inputs")
    command = re.sub(r"\$\{\{\s*inputs\.(\w+)\s*\}\}", lambda m: _input(inputs, m[1]), str(job.get("command") or ""))
    machine = machine_of(str(at(job, "resources", "instance_type") or ""))
    return Manifest("\n".join([*lines, command]), machine, f"instance_type {machine}" if machine else "")


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
