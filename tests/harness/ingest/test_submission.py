"""What is packed is read again as it was, and nobody's name is in it."""

import gzip
import json
import shutil
import socket
import zipfile
from pathlib import Path

import command_line
import pytest
from asked import put, refusal

from harness.__main__ import main
from harness.evidence import submission
from harness.evidence.ingest.command import ingest
from tests.docs_tools import ROOT

LOG = ROOT / "measured/logs/cpu_gpt.log.gz"
TABLE = "id,gpu,gpus,model,framework,precision,tp,pp,cp,micro_batch_size,global_batch_size,seq_length,step_time_s\n" + (
    "a,h100,16,llama3.1_8b,megatron-lm,bf16,2,1,1,1,64,4096,2.1\n"
    "b,h100,16,llama3.1_8b,megatron-lm,bf16,4,1,1,1,64,4096,2.6\n"
)
KERNELS = "kind,m,n,k,seconds\ngemm,4096,4096,4096,0.0002\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "results"
    (made / "node" / "kernels").mkdir(parents=True)
    shutil.copy(LOG, made / LOG.name)
    (made / "runs.csv").write_text(TABLE, encoding="utf-8")
    (made / "node" / "kernels" / "gemm.csv").write_text(KERNELS, encoding="utf-8")
    (made / "node" / "mine.gpu.yaml").write_text("name: mine\nbandwidth_gbs: 10.5\n", encoding="utf-8")
    return made


def read(path: Path, into: Path) -> tuple[list[object], list[Path]]:
    runs, others = submission.unpack(path, into)
    return list(ingest(runs).runs), others


def test_the_round_trip_gives_the_same_runs_and_the_same_files(folder: Path, tmp_path: Path) -> None:
    packed = submission.pack(folder, tmp_path / "a.zip")
    assert packed.runs == {"cpu_gpt.log": 1, "runs.csv": 2}
    assert packed.files == ("node/kernels/gemm.csv", "node/mine.gpu.yaml")
    plain = tmp_path / "plain" / "cpu_gpt.log"
    plain.parent.mkdir()
    plain.write_bytes(gzip.decompress(LOG.read_bytes()))
    runs, others = read(tmp_path / "a.zip", tmp_path / "into")
    assert runs == list(ingest([plain, folder / "runs.csv"]).runs)
    assert [path.read_text("utf-8") for path in others] == [KERNELS, "name: mine\nbandwidth_gbs: 10.5\n"]


def test_another_ingests_it(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.zip"
    assert command_line.document("harness", "submit", folder, "--out", out)["runs"] == {"cpu_gpt.log": 1, "runs.csv": 2}
    assert len(command_line.document("harness", "ingest", out, "--out", tmp_path / "got", "--no-plot")["rows"]) == 3
    assert (tmp_path / "got/node/kernels/gemm.csv").read_text("utf-8") == KERNELS


def test_a_log_beside_the_table_that_was_made_of_it_is_one_run(tmp_path: Path) -> None:
    """As ``harness measure`` leaves them in its folder."""
    out = tmp_path / "measured"
    out.mkdir()
    shutil.copy(LOG, out / LOG.name)
    assert main(["ingest", str(LOG), "--out", str(out / "runs.yaml"), "--no-plot"]) == 0
    assert main(["submit", str(out), "--out", str(tmp_path / "m.zip")]) == 0
    runs, _ = submission.unpack(tmp_path / "m.zip", tmp_path / "there")
    found = ingest(runs)
    assert [run.id for run in found.runs] == ["cpu_gpt"]
    assert found.problems == ()
    table = next(path for path in runs if path.suffix == ".yaml")
    table.write_text(table.read_text("utf-8").replace("id: cpu_gpt", "id: another"), encoding="utf-8")
    assert "does not hold, too" in str(ingest(runs).problems)


SECRETS = ("alice", "gpu-node-17", "10.12.3.4", "alice@corp.example", "secret-project", "login01")


def test_who_and_where_is_replaced_and_said_and_the_figures_stay(folder: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "rack7-box.lab.example")
    before = read_of(folder, tmp_path / "clean.zip", tmp_path / "one")
    with gzip.open(folder / LOG.name, "rt", encoding="utf-8") as stream:
        text = stream.read()
    (folder / LOG.name).unlink()
    head = (
        "MASTER_ADDR=gpu-node-17 on 10.12.3.4:29500, hostname: login01\n"
        "mail alice@corp.example, data /home/alice/secret-project/c4.bin, /scratch/alice/secret-project/out/run.log\n"
        f"started on {socket.gethostname()} by alice\nkernels of /usr/lib/x86_64/libcudnn.so.9.1.0.70 kept\n"
    )
    (folder / "cpu_gpt.log").write_text(head + text, encoding="utf-8")
    (folder / "gpu-node-17.txt").write_text(
        "throughput in tokens/s/GPU, v1.2.3.4, https://x.org/a/b/c\n", encoding="utf-8"
    )
    packed = submission.pack(folder, tmp_path / "c.zip")
    assert {"host", "user", "path", "mail address", "network address"} <= set(packed.stripped)
    with zipfile.ZipFile(tmp_path / "c.zip") as archive:
        whole = "\n".join([*archive.namelist(), *(archive.read(name).decode() for name in archive.namelist())])
    assert [word for word in (*SECRETS, "rack7-box") if word in whole] == []
    kept = ("<path>/c4.bin", "/usr/lib/x86_64/libcudnn.so.9.1.0.70", "tokens/s/GPU, v1.2.3.4, https://x.org/a/b/c")
    assert [word for word in kept if word not in whole] == []
    after, _ = read(tmp_path / "c.zip", tmp_path / "two")
    assert figures(after) == figures(before)


@pytest.mark.parametrize("name", ["h100", "megatron", "nemo"])
def test_a_host_or_a_user_named_like_a_word_of_results_changes_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = read_of(folder, tmp_path / "clean.zip", tmp_path / "one")
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    (folder / "who.log").write_text(f"saw /home/{name}/x/y.bin\n", encoding="utf-8")
    assert read_of(folder, tmp_path / "d.zip", tmp_path / "two") == before


def read_of(folder: Path, out: Path, into: Path) -> list[object]:
    submission.pack(folder, out)
    return read(out, into)[0]


def figures(runs: list[object]) -> list[object]:
    return [(run.id, run.gpus, run.measured, run.recipe) for run in runs]  # type: ignore[attr-defined]


def test_packing_again_changes_nothing(folder: Path, tmp_path: Path) -> None:
    (folder / "who.log").write_text("hostname: login01\nsaw /home/alice/x/y.bin\n", encoding="utf-8")
    submission.pack(folder, tmp_path / "one.zip")
    submission.pack(folder, tmp_path / "same.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "same.zip").read_bytes()
    runs, others = submission.unpack(tmp_path / "one.zip", tmp_path / "again")
    assert submission.pack(tmp_path / "again", tmp_path / "two.zip").stripped == {}
    assert len(runs) + len(others) == 5


@pytest.mark.parametrize("name", ["../x.csv", "/etc/x.csv", "a\\..\\x.csv"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    bad = tmp_path / "bad.zip"
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("submission.json", json.dumps({"submission": 1, "runs": {name: 1}, "files": []}))
        archive.writestr(name, "x")
    refusal(submission.unpack, bad, tmp_path / "into", match="harness submit")
    assert not (tmp_path / "x.csv").exists()


@pytest.mark.parametrize("text", [None, "[]", "{}", '{"submission": 2, "runs": {}, "files": []}', "nonsense"])
def test_a_zip_that_is_no_submission_is_refused(tmp_path: Path, text: str | None) -> None:
    bad = tmp_path / "bad.zip"
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("other.txt" if text is None else "submission.json", text or "")
    assert main(["ingest", str(bad)]) == 2


@pytest.mark.parametrize(("places", "value"), [((6, 8), 1), ((8, 10), 99)], ids=["encrypted", "unknown compression"])
def test_a_zip_that_cannot_be_unpacked_here_is_refused(tmp_path: Path, places: tuple[int, int], value: int) -> None:
    """``places``: of the field in the header of a file, and in its entry of the directory (PKWARE, APPNOTE 4.3)."""
    bad = tmp_path / "bad.zip"
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("submission.json", "{}")
    content = bytearray(bad.read_bytes())
    for start, place in zip((content.find(b"PK\3\4"), content.find(b"PK\1\2")), places, strict=True):
        content[start + place] = value
    assert main(["ingest", str(put(bad, content))]) == 2


def test_nothing_to_pack_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "nowhere", tmp_path / "empty"):
        refusal(submission.pack, wrong, tmp_path / "x.zip")
    assert main(["submit", str(tmp_path), "--out", "x.tar"]) == 2
