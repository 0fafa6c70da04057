"""Shell inside YAML: Kubernetes manifests and jobs of other submitters."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from asked import put, refusal
from tabled import tabled

from projector.errors import InputError, Unsupported
from projector.intake import detect
from projector.intake.loaded import Loaded

_ARGUMENTS = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --bf16 "
    "--global-batch-size 64 --tensor-model-parallel-size $TP --vocab-size 32000 --max-position-embeddings 4096"
)
_TRAINS = f"pretrain_gpt.py {_ARGUMENTS}"


def _container(**fields: Any) -> dict[str, Any]:
    env = [{"name": "TP", "value": "2"}, {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    limits = {"resources": {"limits": {"nvidia.com/gpu": 8}}}
    return {"name": "main", "image": "x", "env": env, **limits, **fields}


def _pod(**fields: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [_container(**fields)]}}}


def _load(folder: Path, *documents: Any, **options: Any) -> Loaded:
    file = put(folder / "job.yaml", documents[0] if isinstance(documents[0], str) else yaml.safe_dump_all(documents))
    return detect.load(file, **options)


def _job(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}


_BASH = {"command": ["/bin/bash", "-lc"], "args": [f"cd /w\nexec torchrun --nproc_per_node=gpu {_TRAINS}"]}
_LISTED = {"command": ["torchrun", "--nproc_per_node=8"], "args": _TRAINS.replace("$TP", "$(TP)").split()}
_UNCOUNTED = {**_LISTED, "command": ["torchrun"]}
_ALONE = {"command": ["python", *_TRAINS.replace("$TP", "$(TP)").split()]}
_KINDS = {
    "PyTorchJob": (
        _job("PyTorchJob", {"pytorchReplicaSpecs": {"Master": _pod(**_BASH), "Worker": {"replicas": 3, **_pod(**_BASH)}}}),
        32,  # a Master that states no number, and 3 Workers
    ),
    "PyTorchJob, a process a pod": (
        _job("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"replicas": 16, **_pod(**_ALONE)}}}),
        16,
    ),
    "Job": (_job("Job", {"parallelism": 4, "completions": 4, **_pod(**_LISTED)}), 32),
    "JobSet": (
        _job("JobSet", {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 4, **_pod(**_BASH)}}}]}),
        64,
    ),
    "TrainJob": (
        _job("TrainJob", {"trainer": {"numNodes": 3, "numProcPerNode": 8, "env": [{"name": "TP", "value": "2"}],
                                      "command": ["torchrun"], "args": _TRAINS.replace("$TP", "$(TP)").split()}}),
        24,
    ),
    "MPIJob": (
        _job("MPIJob", {"mpiReplicaSpecs": {"Launcher": _pod(command=["mpirun", "-np", "16", "python"],
                                                             args=_TRAINS.replace("$TP", "$(TP)").split()),
                                            "Worker": {"replicas": 2, **_pod()}}}),
        16,
    ),
    "MPIJob, its slots": (
        _job("MPIJob", {"slotsPerWorker": 8, "mpiReplicaSpecs": {"Launcher": _pod(command=["mpirun", *_ALONE["command"]]),
                                                                 "Worker": {"replicas": 4, **_pod()}}}),
        32,
    ),
    "PyTorchJob, elastic": (
        _job("PyTorchJob", {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 2, "nProcPerNode": 4},
                            "pytorchReplicaSpecs": {"Worker": {"replicas": 2, **_pod(**_UNCOUNTED)}}}),
        8,
    ),
    "Workflow": (_job("Workflow", {"templates": [{"name": "t", "container": _container(**_LISTED)}]}), 8),
    "Workflow, a script": (
        _job("Workflow", {"templates": [{"name": "t", "script": _container(command=["bash"], source=_BASH["args"][0])}]}),
        8,
    ),
    "RayJob": (_job("RayJob", {"entrypoint": f"torchrun --nnodes 2 --nproc_per_node 8 {_TRAINS.replace('$TP', '2')}"}), 16),
}  # fmt: skip


@pytest.mark.parametrize("kind", _KINDS)
def test_what_its_containers_run_is_read(tmp_path: Path, kind: str) -> None:
    document, gpus = _KINDS[kind]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "etcd"}, "spec": {"ports": []}}
    loaded = _load(tmp_path, service, document)
    work = loaded.workload()
    assert (work.gpus, work.recipe.tp, work.model.num_layers, work.recipe.global_batch_size) == (gpus, 2, 32, 64)
    assert loaded.cluster is None


def test_a_job_of_more_or_fewer_pods_is_asked_for_its_gpus(tmp_path: Path) -> None:
    policy = {"minReplicas": 1, "maxReplicas": 8, "nProcPerNode": 8}
    pods = {"Worker": {"replicas": 4, **_pod(**_UNCOUNTED)}}
    refusal(
        _load,
        tmp_path,
        _job("PyTorchJob", {"elasticPolicy": policy, "pytorchReplicaSpecs": pods}),
        match="1:8 .elastic",
    )


def test_two_of_the_same_pods_are_one_training_and_two_different_ones_are_refused(tmp_path: Path) -> None:
    other = {**_BASH, "args": [_BASH["args"][0].replace("--num-layers 32", "--num-layers 16")]}
    pods = {"Master": _pod(**_BASH), "Worker": {"replicas": 1, **_pod(**other)}}
    refusal(_load, tmp_path, _job("PyTorchJob", {"pytorchReplicaSpecs": pods}), match="2 different trainings")


def test_a_script_of_a_config_map_runs_where_it_is_mounted(tmp_path: Path) -> None:
    script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"},
              "data": {"train.sh": f"torchrun --nnodes $NNODES --nproc_per_node 8 {_TRAINS}\n"}}  # fmt: skip
    pod = _pod(command=["bash", "/code/train.sh"], volumeMounts=[{"name": "c", "mountPath": "/code"}])
    pod["template"]["spec"]["volumes"] = [{"name": "c", "configMap": {"name": "code"}}]
    assert _load(tmp_path, script, _job("Job", pod), env={"NNODES": "4"}).gpus == 32
    refusal(_load, tmp_path, script, _job("Job", pod), match="NNODES")


def test_what_envsubst_fills_in_is_asked_for_by_name(tmp_path: Path) -> None:
    line = {"command": ["torchrun", "--nproc_per_node=${GPUS}", "--nnodes=${NODES}"], "args": _TRAINS.split()}
    document = _job("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"replicas": "${NODES}", **_pod(**line)}}})
    refusal(_load, tmp_path, document, match=r"--env GPUS=….*--env NODES|--env NODES=….*--env GPUS")
    assert _load(tmp_path, document, env={"GPUS": "8", "NODES": "2"}).gpus == 16


@pytest.mark.parametrize(("labels", "cluster"), tabled("readers", "the_machine_that_a_pod_asks_for_is_the_cluster"))
def test_the_machine_that_a_pod_asks_for_is_the_cluster(tmp_path: Path, labels: dict[str, str], cluster: str) -> None:
    pod = _pod(**_LISTED)
    pod["template"]["spec"]["nodeSelector"] = labels
    loaded = _load(tmp_path, _job("Job", pod))
    assert loaded.cluster == cluster
    assert cluster is None or any(note.startswith(f"cluster={cluster} (") for note in loaded.assumed)


@pytest.mark.parametrize(("job", "gpus", "cluster"), tabled("readers", "jobs_of_submitters"))
def test_what_a_submitter_starts_runs_on_the_gpus_it_asks_for(
    tmp_path: Path, job: dict[str, Any], gpus: int | None, cluster: str | None
) -> None:
    text = yaml.safe_dump(job).replace("@TRAINS", _TRAINS)
    if gpus is None:
        refusal(_load, tmp_path, text, match="gpus|GPUS_PER_NODE")
        return
    loaded = _load(tmp_path, text)
    assert (loaded.gpus, loaded.cluster, loaded.recipe and loaded.recipe.tp) == (gpus, cluster, 2)
    assert cluster is None or loaded.assumed[0].startswith(f"cluster={cluster} (")


def test_parameters_of_a_job_lie_where_its_program_looks_for_them(tmp_path: Path) -> None:
    job, expected = tabled("readers", "job_of_composer")
    loaded = _load(tmp_path, job)
    recipe = loaded.recipe
    assert recipe
    found = {name: getattr(recipe, name, getattr(loaded, name, None)) for name in expected}
    assert found == expected


def test_a_job_of_flagscale_starts_its_program_with_the_arguments_below_it(tmp_path: Path) -> None:
    sizes = {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 2048, "vocab_size": 64000}
    data = {"system": {}, "model": {**sizes, "micro_batch_size": 1, "global_batch_size": 64}, "data": {}}
    (tmp_path / "train").mkdir()
    own = put(tmp_path / "train" / "7b.yaml", yaml.safe_dump(data))
    (tmp_path / "train.yaml").write_text("[")  # nothing that anybody can read
    assert detect.load(own).model.num_layers == 32

    def job(entrypoint: str, **runner: Any) -> dict[str, Any]:
        task = {"runner": runner, "task": {"entrypoint": f"flagscale/train/{entrypoint}"}}
        return {"defaults": ["_self_", {"train": "7b"}], "experiment": task}

    assert _load(tmp_path, job("train_gpt.py", nnodes=4, nproc_per_node=8)).gpus == 32
    refusal(_load, tmp_path, job("train_gpt.py", hostfile="<xxxx>"), match="--env HOSTS")
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(job("train_rwkv.py")))
    for file in (own, tmp_path / "train.yaml"):
        refusal(detect.load, file, match="train_rwkv", kind=Unsupported)


def test_what_is_no_manifest_of_a_training_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="helm template"):
        _load(tmp_path, "apiVersion: v1\nkind: Job\nmetadata:\n  name: {{ .Values.name }}\n")
    refusal(_load, tmp_path, "apiVersion: v1\nkind: [\n", match="YAML")
    refusal(_load, tmp_path, _job("Job", _pod()), match=r"starts no Python program|states a run")
    refusal(_load, tmp_path, _job("Job", _pod(command=["sleep", "infinity"])), match="starts no Python program")
    applied = f"#!/bin/bash\ncat <<EOF | kubectl apply -f -\napiVersion: v1\nkind: Job\nEOF\ntorchrun {_TRAINS}\n"
    assert detect.load(put(tmp_path / "run.sh", applied.replace("$TP", "1"))).gpus == 1


@pytest.mark.parametrize(("at", "value"), tabled("readers", "fields_of_other_types_end_in_no_traceback"))
def test_fields_of_other_types_end_in_no_traceback(tmp_path: Path, at: tuple[str], value: Any) -> None:
    pod = {"containers": [_container(**_BASH) | {at[0]: value}, "a word"], "volumes": "none", "nodeSelector": ["gpu"]}
    scripts = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": "scripts", "data": ["a.sh"]}
    try:
        said = f"{_load(tmp_path, _job('Job', {'template': {'spec': pod}}), scripts).model.num_layers} layers"
    except InputError as error:
        said = str(error)
    assert said == "32 layers" or "job.yaml" in said


def test_a_document_that_is_broken_is_named(tmp_path: Path) -> None:
    refusal(_load, tmp_path, "apiVersion: v1\nkind: Job\nspec: [1,\n---\nkind: Pod\n", match=r"job\.yaml")
