"""Ranks by torchrun, srun and mpirun: places, devices, the meeting point; one voice; what is left when a rank dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from asked import refusal
from benchmark_cases import SMALL, TWO_RANKS

from projector.benchmark import launcher, processes
from projector.benchmark.device import open_device
from projector.benchmark.launcher import Launched
from projector.cli.live import first_rank_prints
from projector.errors import InputError, Problem
from tests.workloads import written

TORCHRUN = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "a"}
SLURM = {
    "SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu-[017-018]-ib,x1", "SLURM_JOB_ID": "123456",
}  # fmt: skip
OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": value for name, value in (("RANK", "9"), ("SIZE", "16"), ("LOCAL_RANK", "1"))}
HYDRA = {"PMI_RANK": "9", "PMI_SIZE": "16", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "8"}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in {*TORCHRUN, *SLURM, *OPEN_MPI, *HYDRA, "MASTER_PORT", "SLURM_NNODES", "GROUP_WORLD_SIZE"}:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_every_launcher_says_where_a_rank_is() -> None:
    for by, environment in (("torchrun", TORCHRUN), ("srun", SLURM), ("mpirun", HYDRA)):
        assert launcher.launched(environment) == Launched(by, 9, 16, 1, 8, 2)
    assert launcher.launched({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}) == Launched("mpirun", 9, 16, 1, 8, 2)
    both = {**SLURM, **TORCHRUN, "WORLD_SIZE": "8", "RANK": "3", "LOCAL_RANK": "3", "GROUP_WORLD_SIZE": "1"}
    assert launcher.launched(both) == Launched("torchrun", 3, 8, 3, 8, 1)  # torchrun inside a Slurm step
    nothing: Mapping[str, str] = {}
    allocation = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "16"}  # a batch script before its srun
    for environment in (
        nothing,
        allocation,
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {"RANK": "0"},
    ):
        assert launcher.launched(environment) is None


def test_ranks_that_no_launcher_gives_are_refused() -> None:
    for change, key in (({"RANK": "x"}, "RANK"), ({"RANK": "16"}, "RANK"), ({"WORLD_SIZE": "-2"}, "WORLD_SIZE")):
        refusal(launcher.launched, {**TORCHRUN, **change}, match=key)


def test_ranks_meet_on_the_first_node() -> None:
    srun, mpirun = launcher.launched(SLURM), launcher.launched(HYDRA)
    assert srun
    assert mpirun
    assert launcher.meeting(srun, SLURM) == "tcp://gpu-017-ib:29956"
    assert launcher.meeting(srun, {**SLURM, "MASTER_ADDR": "b", "MASTER_PORT": "7"}) == "tcp://b:7"
    assert launcher.meeting(srun, {"SLURM_STEP_NODELIST": "n3,n4"}) == "tcp://n3:29500"
    assert launcher.meeting(Launched("mpirun", 1, 8, 1, 8, 1), {}) == "tcp://127.0.0.1:29500"
    refusal(launcher.meeting, mpirun, HYDRA, match="MASTER_ADDR")


def _gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    capability = SimpleNamespace(gcnArchName="")
    cuda = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: count, set_device=lambda _: None,
        get_device_name=lambda _: "NVIDIA H200", get_device_properties=lambda _: capability,
        get_device_capability=lambda _: (9, 0),
    )  # fmt: skip
    fake = SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None), set_num_threads=lambda _: None)
    monkeypatch.setitem(sys.modules, "torch", fake)


def test_every_rank_opens_the_gpu_of_its_place(alone: pytest.MonkeyPatch) -> None:
    _gpus(alone, 8)
    assert open_device("cuda").place == open_device().place == "cuda:0"
    for name, value in TORCHRUN.items():
        alone.setenv(name, value)
    for text in (None, "cuda", "rocm"):
        assert open_device(text).place == "cuda:1"
    refusal(open_device, "cuda:0", match="gives each of the 8 ranks")
    alone.setenv("LOCAL_RANK", "7")
    assert open_device().place == "cuda:7"
    _gpus(alone, 1)  # the launcher shows every rank one
    assert open_device().place == "cuda:0"
    _gpus(alone, 4)
    refusal(open_device, match="at most 4 ranks on a node")


def test_one_rank_prints_and_only_an_own_mistake_is_told_by_others(alone: pytest.MonkeyPatch, capsys) -> None:
    def heard(problem: Problem | None = None) -> str:
        with first_rank_prints():
            print("a table")
            if problem:
                raise InputError([problem])
        return capsys.readouterr().out

    assert heard() == "a table\n"
    for name, value in TORCHRUN.items():
        alone.setenv(name, value)
    assert heard() == ""
    with pytest.raises(SystemExit) as ended:
        heard(Problem("case.yaml", "tp", 3, "a divisor"))
    assert ended.value.code == 2
    refusal(heard, Problem("rank 9", "cuda:1", "out of memory", "a measurement"), match="rank 9")


def test_a_rank_that_was_killed_is_blamed_and_not_those_that_lost_it(tmp_path: Path) -> None:
    late = "import time; time.sleep(0.2); raise RuntimeError('Connection closed by peer')"
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    taken = "raise RuntimeError('CUDA error: CUDA-capable device(s) is/are busy or unavailable')"
    memory = "class OutOfMemoryError(RuntimeError): pass\nraise OutOfMemoryError('CUDA out of memory. Tried to')"
    lacks = "from projector.errors import Unsupported\nraise Unsupported('its kernel is missing')"
    wait = "import time; time.sleep(60)"
    for scripts, rank, word in (
        ((late, killed, wait), 1, "killed"),
        ((wait, memory), 1, "out of memory"),
        ((taken, wait), 0, "compute-mode=DEFAULT"),  # GPUs in exclusive-process mode
        ((wait,), 0, "past its time"),
        ((lacks,), 0, "'projector.errors.Unsupported: its kernel is missing'"),
    ):
        ranks = []
        for number, script in enumerate(scripts):
            with (tmp_path / str(number)).open("wb") as log:
                ranks.append(subprocess.Popen([sys.executable, "-c", script], stderr=log))
        assert processes.watched(ranks, 1.0) == rank
        assert all(each.poll() is not None for each in ranks)
        problem = processes.failure("--device", tmp_path / str(rank), rank, ranks[rank].returncode)
        assert problem.key == f"rank {rank}"
        assert word in str(problem)


@pytest.mark.slow
def test_ranks_end_with_who_started_them(tmp_path: Path) -> None:
    """A launcher that a job's time limit kills leaves no rank on a GPU."""
    pytest.importorskip("torch")
    (tmp_path / "sleeper.py").write_text(
        "import os, pathlib, time\n"
        "def run(payload, device, keep):\n"
        "    pathlib.Path(payload).write_text(str(os.getpid()))\n"
        "    time.sleep(120)\n"
    )
    said = tmp_path / "rank"
    job = f"processes.JobFile('sleeper:run', {str(said)!r}, 'cpu', 1, 1, 100.0)"
    code = f"from projector.benchmark import processes; processes.launch({job})"
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths})
    while not (said.exists() and said.read_text()) and parent.poll() is None:
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    status, ends = Path(f"/proc/{said.read_text()}/stat"), time.monotonic() + 10.0
    while _lives(status) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not _lives(status)


def _lives(status: Path) -> bool:
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _rank(rank: int, tmp_path: Path, by: str, port: int, *flags: str) -> subprocess.Popen[str]:
    slurm = {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": 2, "SLURM_LOCALID": rank, "SLURM_STEP_TASKS_PER_NODE": 2}
    mpi = {f"OMPI_COMM_WORLD_{name}": value for name, value in zip(("RANK", "SIZE", "LOCAL_RANK"), (rank, 2, rank))}  # noqa: B905
    environment = {**os.environ, **{name: str(value) for name, value in (slurm if by == "srun" else mpi).items()}}
    environment |= {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable, "-m", "projector", "benchmark", "--config", str(tmp_path / "case.yaml"), "--device", "cpu",
    ]  # fmt: skip
    command += ["--budget", "0.1", "--layers", "torch", "--threads", "1", *flags]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_ranks_of_srun_time_together_and_one_prints(tmp_path: Path) -> None:
    """Those of mpirun do in the test below, until one is killed."""
    pytest.importorskip("torch")
    written(tmp_path / "case.yaml", SMALL, TWO_RANKS)
    file = tmp_path / "times.json"
    ranks = [_rank(rank, tmp_path, "srun", 29517, "--save-benchmark", str(file)) for rank in range(2)]
    outs = [each.communicate(timeout=600) for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0], outs
    assert "2 ranks at once" in outs[0][0]
    assert outs[1][0] == ""
    assert json.loads(file.read_text())["environment"]["ranks"] == 2


@pytest.mark.slow
def test_what_was_timed_before_a_rank_died_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    written(tmp_path / "case.yaml", SMALL, TWO_RANKS)
    file = tmp_path / "times.json"
    flags = ("--save-benchmark", str(file), "--budget", "3")
    first, second = (_rank(rank, tmp_path, "mpirun", 29519, *flags) for rank in range(2))
    while not file.exists() and first.poll() is None:
        time.sleep(0.01)
    second.send_signal(signal.SIGKILL)
    out, err = first.communicate(timeout=600)
    assert first.returncode == 2, out + err
    (line,) = [line for line in err.splitlines() if "rank 0" in line]
    assert "has what was timed before" in line
    load = ["benchmark", "--config", str(tmp_path / "case.yaml"), "--load-benchmark", str(file)]
    done = subprocess.run([sys.executable, "-m", "projector", *load], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "collectives are priced: a rank was lost" in done.stdout


def _told(cuda: SimpleNamespace, busy: Mapping[int, list[float]]) -> None:
    """A driver that says how busy each GPU is, look by look, the last for ever."""
    cuda.clock_rate, cuda.power_draw, cuda.temperature = (lambda _: 1755), (lambda _: 412_500), (lambda _: 61)
    cuda.utilization = lambda index: busy[index].pop(0) if len(busy[index]) > 1 else busy[index][0]
    ours = f"process {os.getpid()} uses 1 MB\nprocess {os.getppid()} uses 1 MB"
    cuda.list_gpu_processes = lambda index: f"GPU:{index}\nprocess 17 uses 900.000 MB GPU memory\n{ours}"


def test_a_gpu_that_others_compute_on_is_refused_and_conditions_are_kept(alone: pytest.MonkeyPatch) -> None:
    from projector.benchmark import conditions

    _gpus(alone, 8)
    device = open_device("cuda")
    cuda = device.torch.cuda
    cuda.synchronize = lambda _: None
    assert conditions.under(device) == {}  # torch without the driver's library
    conditions.refuse_busy(device)
    busy: dict[int, list[float]] = {index: [3] for index in range(8)}
    _told(cuda, busy)
    told = {"clock_mhz": 1755, "power_watts": 412.5, "temperature_c": 61, "busy_percent": 3, "others": 1}
    assert conditions.under(device) == told
    device.torch.version.hip = "7.0"
    cuda.power_draw = lambda _: 700  # amd-smi's are watts
    assert conditions.under(device)["power_watts"] == 700
    cuda.power_draw = cuda.clock_rate = lambda _: 0  # what it does not know
    assert {"power_watts", "clock_mhz"}.isdisjoint(conditions.under(device))
    busy[0] = [97, 97, 4]  # what ran here itself fades
    conditions.refuse_busy(device)
    alone.setattr(conditions, "_BUSY_FADES", 0.0)
    busy[5] = [97]
    conditions.refuse_busy(device)
    with pytest.raises(InputError, match=r"--device: cuda:5: found .97 % busy before anything is timed: process 17.,"):
        conditions.refuse_busy(device, 8)
    for name, value in {**TORCHRUN, "LOCAL_RANK": "5"}.items():
        alone.setenv(name, value)
    rank = open_device("cuda")
    conditions.refuse_busy(device, 16)  # a rank of a launcher looks at its own
    with (
        pytest.raises(InputError, match="rank 9: cuda:5: found"),
        first_rank_prints(),
    ):  # and is heard, though it is not the first
        conditions.refuse_busy(rank, 16)


def test_ranks_that_are_started_here_are_nobody_elses(alone: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shell of a cluster has MASTER_ADDR: a rank on cuda:1 would take itself for one of torchrun's, which gives places."""
    alone.setenv("MASTER_ADDR", "node0")
    seen: list[dict[str, str]] = []
    alone.setattr(processes.subprocess, "Popen", lambda _, env, **__: seen.append(env))
    processes._spawned(processes.JobFile("a:b", None, "cuda:0", 4, 2, 1.0), tmp_path)
    for rank, environment in enumerate(seen):
        assert launcher.launched(environment) is None
        assert (environment["LOCAL_RANK"], environment["OMP_NUM_THREADS"]) == (str(rank), "4")
    _gpus(alone, 2)
    for name, value in seen[1].items():
        alone.setenv(name, value)
    alone.delenv("MASTER_ADDR")
    assert open_device("cuda:1").place == "cuda:1"


def test_ranks_of_a_host_share_its_cores(alone: pytest.MonkeyPatch) -> None:
    _gpus(alone, 8)
    device = open_device("cuda")
    device.torch.get_num_threads = lambda: 192
    alone.setattr(processes, "cores", lambda: 192)
    assert [processes.threads_of(device, ranks) for ranks in (1, 8, 400)] == [192, 24, 1]


def test_the_pause_before_a_kernel_is_longer_than_its_launch(alone: pytest.MonkeyPatch) -> None:
    """Whatever clock counts the cycles of a pause, and however many kernels a call issues."""
    from projector.benchmark import stopwatch

    _gpus(alone, 1)
    device = open_device("cuda")
    for rate, issue in ((1.8e9, 1e-5), (1.0e8, 1e-5), (1.8e9, 5e-3)):  # of AMD a clock of 100 MHz
        now, free, pauses = [0.0], [0.0], list[float]()

        def launch(seconds: float) -> None:
            free[0] = max(free[0], now[0]) + seconds  # noqa: B023

        def sleep(cycles: int) -> None:
            pauses.append(cycles / rate)  # noqa: B023
            launch(cycles / rate)  # noqa: B023

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = max(free[0], now[0])  # noqa: B023

            def elapsed_time(self, other: Event) -> float:
                return (other.at - self.at) * 1e3

        def call() -> None:
            for _ in range(10):
                now[0] += issue / 10  # noqa: B023
                launch(1e-6)

        cuda = device.torch.cuda
        cuda.synchronize = lambda _: now.__setitem__(0, max(now[0], free[0]))  # noqa: B023
        cuda._sleep, cuda.Event = sleep, Event
        alone.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: now[0]))  # noqa: B023
        found = stopwatch.Stopwatch(device, samples=5, flush=False).time(call)
        assert found.median == pytest.approx(1e-5), (rate, issue)
        assert max(pauses[1:]) < 0.05


def test_times_of_one_gpu_are_not_put_into_a_run_of_another(alone: pytest.MonkeyPatch) -> None:
    from projector.benchmark import measured
    from projector.hardware import catalogue
    from projector.workload import zoo
    from projector.workload.recipe import Recipe
    from projector.workload.workload import Workload

    _gpus(alone, 1)
    recipe = Recipe(micro_batch_size=1, global_batch_size=1, seq_length=64)
    work = Workload(model=zoo.load("llama3_8b", num_layers=1), recipe=recipe, gpus=1)
    for title, name in (("NVIDIA H200", "h100"), ("NVIDIA H200 MIG 1g.18gb", "h200"), ("NVIDIA H200", "mi300x")):
        sys.modules["torch"].cuda.get_device_name = lambda _, title=title: title  # type: ignore[attr-defined]
        with pytest.raises(InputError, match="say nothing of"):
            measured.planned(work, catalogue.cluster(name), open_device("cuda"), layers="torch", budget=1.0)
