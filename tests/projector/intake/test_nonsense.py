"""A value of any file that users bring, replaced by a nonsense word or with one in brackets behind it: refused, told, listed
as having no effect, or another answer. Never the same answer in silence."""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from asked import put

from projector.errors import InputError, Unsupported
from projector.intake import detect, huggingface, primus
from projector.intake.dialect import dialect
from projector.intake.loaded import Loaded
from tests.projector.intake.test_dialects import answer
from tests.projector.intake.test_loader_huggingface import CONFIGS, PUBLISHED

WORD = "zqkvbx"
#: What only names something, of whoever starts a run or of data, and is never listed.
NAMES = {
    *(
        "path",
        "type",
        "model_type",
        "fsdp_transformer_layer_cls_to_wrap",
        "FORCE_TORCHRUN",
        "alpha",
        "dropout_position",
    ),
    *("work_group", "user_name", "exp_name", "workspace", "lora_A_init_method", "lora_B_init_method"),
}
#: ``--key value``, ``key: value`` or ``key = value`` in a text of any kind.
VALUE = re.compile(
    r"(?:--([\w.-]+)[ =]+(?!-)|(?<![\w.])([A-Za-z_][\w.+]*)(?:: |\s?=\s?))"
    r"(\"[^\"\n]*\"|'[^'\n]*'|\[[^\]\n{]*\]|[^\s\\\"'{},\])]+)"
)
SIZES = {"@MBS": "1", "@GAS": "4", "@GBS": "32", "@SEQ": "4096"}
Files = Mapping[str, str]


@cache
def forms() -> Mapping[tuple[str, str], Files]:
    """Returns the files of each form of each job of ``data/one_job.yaml``."""
    jobs = yaml.safe_load((Path(__file__).parent / "data/one_job.yaml").read_text())
    return {
        (job, form): {name: re.sub("@[A-Z]+", lambda found: SIZES[found[0]], text) for name, text in files.items()}
        for job, held in jobs.items()
        for form, files in held["forms"].items()
    }


@lru_cache(maxsize=4)
def read(form: str, files: tuple[tuple[str, str], ...]) -> Loaded:
    with TemporaryDirectory() as folder:
        for name, text in files:
            put(Path(folder) / name, text)
        return detect.load(Path(folder) / form, node_gpus=8)


def said(loaded: Loaded) -> str:
    return " ".join((*loaded.unmodelled, *loaded.assumed, *loaded.moot))


def silent(before: Loaded, read_after: Callable[[], Loaded], key: str) -> bool:
    """Returns whether a changed value of ``key`` leaves the answer as it was, and nothing says so."""
    try:
        after = read_after()
    except (InputError, Unsupported):
        return False
    listed = {part.replace("-", "_") for each in after.ignored for part in (each, each.rpartition(".")[2])}
    told = WORD in said(after) or said(after) != said(before) or key.replace("-", "_") in listed
    return not told and key not in NAMES and answer(after) == answer(before)


def changes(old: str) -> Iterator[str]:
    """Yields ``old`` as it stands in a text, replaced by a nonsense word, and with one behind it."""
    if old.startswith("["):
        yield from (f"[{WORD}]", f'{old[:-1]}, "{WORD}"]')
    else:
        bare = old.strip("\"'")
        yield from (f'"{WORD}"', f'"{bare} ({WORD})"')


PLACES = [
    (*where, name, match.span(3), match[1] or match[2])
    for where, files in forms().items()
    for name, text in files.items()
    for match in VALUE.finditer(text)
]


def test_in_the_words_of_every_trainer() -> None:
    found = []
    for job, form, name, (start, end), key in PLACES:
        files = forms()[job, form]
        before, text = read(form, tuple(files.items())), files[name]
        for new in changes(text[start:end]):
            made = tuple({**files, name: text[:start] + new + text[end:]}.items())
            if silent(before, lambda form=form, made=made: read(form, made), key):  # type: ignore[misc]
                found.append((form, key, new))
    assert found == []


def leaves(content: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from leaves(value, (*path, key))
    else:
        yield path


def changed(content: Mapping[str, Any], path: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    for qualified in (False, True):
        made: Any = copy.deepcopy(dict(content))
        inside = made
        for key in path[:-1]:
            inside = inside[key]
        old = inside[path[-1]]
        kept = [*old, WORD] if isinstance(old, list) else f"{old} ({WORD})"
        inside[path[-1]] = kept if qualified else WORD
        yield made


MODELS = {**CONFIGS, **{name: told for name, (told, _) in PUBLISHED.items()}}


@pytest.mark.parametrize("name", [*sorted(MODELS)])
def test_in_a_configuration_of_hugging_face(name: str) -> None:
    before = huggingface.from_mapping(MODELS[name], "f", name=name)
    found = [
        path
        for path in leaves(MODELS[name])
        for made in changed(MODELS[name], path)
        if silent(before, lambda made=made: huggingface.from_mapping(made, "f", name=name), path[-1])  # type: ignore[misc]
    ]
    assert not found


#: A dump of ms-swift's arguments, which has all of its words.
SWIFT = {
    "model": "Qwen/Qwen2.5-7B", "template": "qwen", "max_length": 4096, "micro_batch_size": 1, "global_batch_size": 16,
    "tensor_model_parallel_size": 2, "tuner_type": "lora", "lora_rank": 8, "lora_dropout": 0, "torch_dtype": "bfloat16",
    "recompute_granularity": "full", "attention_backend": "flash", "packing": True,
}  # fmt: skip


def test_in_arguments_of_ms_swift_and_its_doubts(tmp_path: Path) -> None:
    def load(content: Mapping[str, Any]) -> Loaded:
        return detect.load(put(tmp_path / "args.json", json.dumps(content)), gpus=8)

    before = load(SWIFT)
    found = [path for path in leaves(SWIFT) for made in changed(SWIFT, path)
             if silent(before, lambda made=made: load(made), path[-1])]  # type: ignore[misc]  # fmt: skip
    assert found == []
    for setting in dialect("ms_swift").doubtful:
        assert f"{setting}={WORD}" in load({**SWIFT, setting: WORD}).unmodelled


def test_in_the_experiments_of_primus(shared: Path, tmp_path: Path, every: int) -> None:
    """Each setting once a framework, of a part of the experiments."""
    root, seen, found = shared / "inputs/primus", set(), []
    for experiment in sorted(root.glob("examples/*/configs/**/*.yaml"))[::every]:
        content = yaml.safe_load(experiment.read_text())
        where = put(tmp_path / experiment.relative_to(root / "examples"), experiment.read_text())
        try:
            before = load_experiment(where, root)
        except (InputError, Unsupported):
            continue
        for path in leaves(content):
            mark = (experiment.relative_to(root).parts[1], *path)
            if mark in seen or (path[0] != "modules" and path[0] not in NAMES):
                continue  # Primus reads nothing beside its modules, which is told
            seen.add(mark)
            for made in changed(content, path):
                put(where, yaml.safe_dump(made))
                if silent(before, lambda where=where: load_experiment(where, root), path[-1]):  # type: ignore[misc]
                    found.append(path)
    assert found == []


def load_experiment(file: Path, root: Path) -> Loaded:
    return primus.load(file, configs=root / "primus/configs", env={})
