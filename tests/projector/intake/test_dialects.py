"""The laws of the engine that reads other tools' files: every word is read, known as neutral, told or refused."""

import copy
import dataclasses
import json
import operator
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from asked import put, refusal
from hypothesis import assume, given
from hypothesis import strategies as st
from tabled import tabled

from projector.errors import InputError, Unsupported
from projector.intake import detect, known_settings, script_files
from projector.intake.dialect import Dialect, dialect
from projector.intake.loaded import Loaded
from projector.intake.settings import Settings
from projector.intake.shell.unknown import Unknowns
from projector.workload import parameters, zoo
from tests.projector.intake import test_loader_torchtitan, test_trainer_readings

#: A sound file of every dialect.
FILES: Mapping[str, dict[str, Any]] = {
    **test_trainer_readings.FILES,
    "torchtitan": tomllib.loads(test_loader_torchtitan.NOW),
}
NONSENSE = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=5, max_size=12).map(lambda word: f"zz{word}")
DIALECTS = pytest.mark.parametrize("name", sorted(FILES))
FOLDER = Path(known_settings.__file__).with_name("dialects")


def read(name: str, content: Mapping[str, object], folder: Path) -> Loaded:
    return detect.load(put(folder / "run.yaml", yaml.safe_dump(json.loads(json.dumps(content)))), gpus=None)


@cache
def sound(name: str) -> Loaded:
    """What the sound file of a dialect says."""
    with TemporaryDirectory() as folder:
        return read(name, FILES[name], Path(folder))


def leaves(content: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def sections(content: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from sections(value, (*path, key))


def changed(content: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    made: dict[str, Any] = copy.deepcopy(dict(content))
    inside = made
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return made


def answer(loaded: Loaded) -> Loaded:
    return dataclasses.replace(loaded, ignored=(), unmodelled=(), assumed=())


def told(loaded: Loaded) -> str:
    return " ".join((*loaded.unmodelled, *loaded.assumed))


def test_every_dialect_has_a_file_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {
        *FILES,
        *["accelerate", "deepspeed", "ms_swift", "nemo2", "transformers", "trl"],
    }


@given(nonsense=NONSENSE, section=st.sampled_from(["", "zero_optimization", "activation_checkpointing"]))
def test_what_deepspeeds_configuration_says_is_read_or_told(nonsense: str, section: str) -> None:
    content = {section: {nonsense: 3}} if section else {nonsense: 3}
    stated, _ = script_files.deepspeed_arguments(json.dumps(content), "ds.json", Unknowns())
    assert any(nonsense in name for name in stated)
    for place in ("zero_optimization.stage", "zero_optimization.offload_optimizer.device", "bf16.enabled"):
        value: object = nonsense
        for key in reversed(place.split(".")):
            value = {key: value}
        refusal(script_files.deepspeed_arguments, json.dumps(value), "ds.json", Unknowns(), match=place)


@DIALECTS
@given(data=st.data(), nonsense=NONSENSE)
def test_a_word_that_means_nothing_is_never_the_same_answer_in_silence(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject, nonsense: str
) -> None:
    path = data.draw(st.sampled_from(list(leaves(FILES[name]))))
    try:
        after = read(name, changed(FILES[name], path, nonsense), tmp_path_factory.mktemp("f"))
    except (InputError, Unsupported):
        return
    known = neutral(dialect(name), path) or path[-1] in told(after)
    assert known or answer(after) != answer(sound(name)), (path, nonsense)


TOLD = [
    (name, *item)
    for name, words in tabled("readers", "words_that_change_a_run_are_told").items()
    for item in words.items()
]


@pytest.mark.parametrize(("name", "place", "value"), TOLD)
def test_a_word_that_changes_a_run_is_told(tmp_path: Path, name: str, place: str, value: object) -> None:
    if name == "megatron":
        assert known_settings.sort({place: value}, frozenset(), "f").unmodelled == (f"{place}={value}",)
        return
    made = copy.deepcopy(FILES[name])
    *sections_of, key = place.split(".")
    inside = made
    for section in sections_of:
        inside = inside.setdefault(section, {})
    inside[key] = value
    said = told(read(name, made, tmp_path))
    assert f"{place.removeprefix('model.')}=" in said
    assert "(unknown)" not in said


#: Settings that are lists, of which one word is one of one.
LISTS = ("lora_target", "lora_target_modules")


@DIALECTS
def test_a_list_of_one_is_no_value_and_neither_is_one_with_a_word_in_brackets(tmp_path: Path, name: str) -> None:
    before = sound(name)
    for path in leaves(FILES[name]):
        value = at(FILES[name], path)
        if isinstance(value, (list, dict)) or path[-1] in LISTS or neutral(dialect(name), path):
            continue
        for other in ([value], [[value]], f"{value} (zqkvbx)"):
            try:
                after = read(name, changed(FILES[name], path, other), tmp_path)
            except (InputError, Unsupported):
                continue
            assert path[-1] in told(after) or answer(after) != answer(before), (path, other)


@DIALECTS
@given(data=st.data(), nonsense=NONSENSE, value=st.sampled_from([True, 3, 0.5, "on", ["a"], {"b": 1}]))
def test_a_setting_that_nobody_knows_is_told_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject, nonsense: str, value: object
) -> None:
    path = (*data.draw(st.sampled_from(list(sections(FILES[name])))), nonsense)
    assume(not neutral(dialect(name), path))
    try:
        after = read(name, changed(FILES[name], path, value), tmp_path_factory.mktemp("f"))
    except (InputError, Unsupported):
        return
    assert nonsense in told(after), path


#: Dialects whose settings stand in sections by their bare names.
INSIDE = ("nemo", "litgpt", "nanotron")
BARE = tuple(tabled("readers", "dialects_bare"))


@DIALECTS
@given(data=st.data(), value=st.sampled_from(["zqkvbx", ["zqkvbx"], {"zqkvbx": 1}]))
def test_a_setting_that_decides_is_looked_at_or_listed_as_having_no_effect(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject, value: object
) -> None:
    """Of every setting that a dialect reads, stated in a file that lacks it: another answer, a doubt, or a refusal; one
    that has no effect under the other settings is listed as such."""
    setting = data.draw(st.sampled_from(sorted(dialect(name).deciding - UNTYPED[name])))
    path = tuple(setting.split("."))
    if name in INSIDE and path[0] not in BARE:
        known = [leaf for leaf in leaves(FILES[name]) if leaf[-1] == setting]
        assume(known or name == "nemo")
        path = known[0] if known else ("model", *path)
    folder = tmp_path_factory.mktemp("f")
    content = copy.deepcopy(FILES[name])
    for depth in range(1, len(path)):
        content = changed(
            content, path[:depth], inside if isinstance(inside := at(content, path[:depth]), dict) else {}
        )
    try:
        after = read(name, changed(content, path, value), folder)
    except (InputError, Unsupported):
        return
    silent = answer(after) == answer(sound(name)) and path[-1] not in told(after)
    assert not silent or any(each in (setting, path[-1]) or setting.startswith(f"{each}.") for each in after.ignored)


def at(content: Mapping[str, Any], path: tuple[str, ...]) -> object:
    for key in path:
        content = content.get(key, {}) if isinstance(content, Mapping) else {}
    return content


#: Names of models, files and vocabularies beside others that count; lists whose length or presence alone decides; words that
#: the number of layers of a kind makes idle.
UNTYPED = {name: frozenset[str]() for name in FILES} | {
    "gpt_neox": frozenset({"tokenizer_type"}),
    "litgpt": frozenset({"data", "optimizer"}),
    "llm_foundry": frozenset({"model.ffn_config", "model.attn_config"}),
    "nemo": frozenset({"name", "restore_from_path", "tokenizer", *(f"tokenizer.{key}" for key in ("model", "type"))}),
    "torchtitan": frozenset(
        {
            "model.hf_assets_path",
            "model.tokenizer_path",
            *(f"quantize.grouped_mm.{kind}.fqns" for kind in ("mx", "float8")),
        }
    ),
}


def neutral(of: Dialect, path: tuple[str, ...]) -> bool:
    """Whether the dialect's YAML, or the list of what all trainers take, says that a setting changes nothing."""
    from fnmatch import fnmatchcase

    bare = [name.replace("-", "_") for name in path if name not in of.sections]
    places = [".".join(bare[: depth + 1]) for depth in range(len(bare))]
    return any(
        fnmatchcase(place, each) or known_settings.known().get(place) is known_settings.NEUTRAL
        for each in of.neutral
        for place in places
    )


@DIALECTS
def test_every_word_of_a_file_is_accounted_for_once(name: str) -> None:
    job = Settings(dialect(name), FILES[name], "f")
    left = job.unread(written=True)
    doubtful = {text.partition("=")[0] for text in left.unmodelled}
    assert not set(left.neutral) & doubtful
    assert set(job.stated) == (job.args.used & set(job.stated)) | set(left.neutral) | doubtful | {
        text.partition("=")[0] for text in job.doubtful()
    }


@DIALECTS
def test_a_setting_has_one_place_in_its_dialect(name: str) -> None:
    of = dialect(name)
    places = [set(of.values), set(of.doubtful), set(of.neutral)]
    for at, one in enumerate(places):
        for other in places[at + 1 :]:
            assert not one & other


@DIALECTS
def test_what_the_tool_has_itself_is_no_doubt(tmp_path: Path, name: str) -> None:
    """A whole file of a tool's own defaults, of which many are names of this project's with a word more."""
    usual = {setting: off[0] for setting, off in dialect(name).doubtful.items() if off[0] is not None}
    job = Settings(dialect(name), usual, "f")
    assert not list(job.doubtful())
    assert not job.unread(written=True).problems


#: Degrees that copy or cut weights over data-parallel ranks, and what stands beside them.
DEGREES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "axolotl": ("dp_shard_size", {"fsdp": ["full_shard"], "deepspeed": None}),
    "torchtune": ("data_parallel_shard_dim", {}),
    "torchtitan": ("parallelism.data_parallel_shard_degree", {}),
    "maxtext": ("ici_fsdp_parallelism", {"ici_data_parallelism": -1, "dcn_data_parallelism": 1}),
}


@pytest.mark.parametrize("name", sorted(DEGREES))
def test_a_degree_of_sharding_cuts_into_as_many(tmp_path: Path, name: str) -> None:
    (place, beside), made = DEGREES[name], set[int]()
    for ranks in (2, 4):
        content: dict[str, Any] = {**FILES[name], **beside}
        section, _, key = place.rpartition(".")
        content = {**content, section: {**content[section], key: ranks}} if section else {**content, key: ranks}
        loaded = read(name, content, tmp_path)
        assert loaded.recipe.data_parallel_shard_size is not None
        made.add(loaded.recipe.data_parallel_shard_size)
    assert max(made) == 2 * min(made)


@DIALECTS
def test_a_length_that_a_file_leaves_open_is_that_of_the_flag(tmp_path: Path, name: str) -> None:
    of = dialect(name)
    settings = [
        each for path in leaves(FILES[name]) if (each := of.today(at_depth(of, path))) in of.names["seq_length"]
    ]
    content = FILES[name]
    for path in leaves(FILES[name]):
        if of.today(at_depth(of, path)) in settings:
            content = changed(content, path, None)
    file = put(tmp_path / "run.yaml", yaml.safe_dump(json.loads(json.dumps(content))))
    loaded = detect.load(file, said={"seq_length": 1536})
    assert settings
    assert loaded.recipe.seq_length == 1536


@pytest.mark.parametrize("name", [*sorted(FILES), "megatron"])
def test_a_file_may_stand_in_the_folder_where_one_is(tmp_path: Path, monkeypatch, name: str) -> None:
    file = put(tmp_path / "run.yaml", yaml.safe_dump(json.loads(json.dumps(FILES.get(name, MEGATRON)))))
    monkeypatch.chdir(tmp_path)
    assert answer(detect.load("run.yaml")).recipe == answer(detect.load(file)).recipe


#: Arguments of Megatron-LM, some of whoever starts it.
MEGATRON: Mapping[str, Any] = {
    "num_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 32000, "seq_length": 1024,
    "max_position_embeddings": 1024, "micro_batch_size": 1, "global_batch_size": 16,
}  # fmt: skip


def test_what_a_variable_holds_is_filled_in_or_asked_for(tmp_path: Path) -> None:
    file = put(tmp_path / "run.yaml", yaml.safe_dump({**MEGATRON, "micro_batch_size": "${MBS}", "save": "${OUT}/x"}))
    refusal(detect.load, file, match=r"micro_batch_size.*--env MBS=")
    assert detect.load(file, env={"MBS": "2"}).recipe.micro_batch_size == 2
    refusal(detect.load, file, env={"OTHER": "2"}, match=r"no launch script.*NAME")


def at_depth(of: Dialect, path: tuple[str, ...]) -> str:
    """A setting's name in its dialect, without sections that stand as if at the top."""
    return ".".join(word.replace("-", "_") for word in path if word not in of.sections)


@DIALECTS
def test_values_and_names_are_fields_of_a_recipe(name: str) -> None:
    from projector.workload.field_facts import about_of
    from projector.workload.recipe import Recipe

    of, fields = dialect(name), set(about_of(Recipe))
    if of.arguments:
        return
    assert set(of.names) <= fields
    for setting, table in of.values.items():
        for means in table.values():
            assert means in ("doubtful", "needed") or set(means) <= fields, setting


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_nothing_that_decides_for_megatron_is_neutral_where_its_arguments_are_taken(name: str) -> None:
    """A pattern of neutral names hides no argument that a recipe field declares."""
    from fnmatch import fnmatchcase

    from projector.workload.field_facts import about_of
    from projector.workload.recipe import Recipe

    of = dialect(name)
    declared = {each for told in about_of(Recipe).values() for each in told.names.get("megatron", ())}
    hidden = {each for each in declared - of.deciding if any(fnmatchcase(each, pattern) for pattern in of.neutral)}
    assert not of.arguments or hidden <= {"main_grads_dtype", "main_params_dtype", "optimizer", *OTHERS_OPTIMIZER}, (
        hidden
    )


#: DeepSpeed's section of an optimizer is that of the command line; accelerate's ``main_*`` are a process.
OTHERS_OPTIMIZER = ("optimizer_cpu_offload", "optimizer_offload_fraction")


@pytest.mark.parametrize("name", sorted(FILES))
def test_true_is_no_number_of_a_setting_that_counts(name: str) -> None:
    """``stage: true`` is not the first stage: a table of numbers refuses truth values."""
    of = dialect(name)
    for setting, table in of.values.items():
        if 1 in table and not any(isinstance(each, bool) for each in table):
            settings = Settings(of, {setting: True}, "f")
            assert any(key == setting for key, _, _ in settings.args.problems), setting


_JOBS = yaml.safe_load((Path(__file__).parent / "data/one_job.yaml").read_text())
_SIZES = [(1, 8, 8192), (4, 2, 2048)]


@pytest.mark.parametrize(("each", "steps", "tokens"), _SIZES)
@pytest.mark.parametrize(("job", "form"), [(job, form) for job in _JOBS for form in _JOBS[job]["forms"]])
def test_one_job_is_one_answer_in_the_words_of_every_trainer(
    tmp_path: Path, job: str, form: str, each: int, steps: int, tokens: int
) -> None:
    sizes = {"@MBS": each, "@GAS": steps, "@GBS": each * steps * 8, "@SEQ": tokens}
    for name, text in _JOBS[job]["forms"][form].items():
        for word, size in sizes.items():
            text = text.replace(word, str(size))
        put(tmp_path / name, text)
    loaded = detect.load(tmp_path / form, node_gpus=8)
    work = loaded.workload(loaded.gpus or 8)
    named = "llama3_8b" if job == "full" else "qwen2.5_7b"
    assert (work.gpus, parameters.count(work.model)) == (8, parameters.count(zoo.load(named)))
    expected = {"micro_batch_size": each, "global_batch_size": each * steps * 8, "seq_length": tokens} | _JOBS[job][
        "is"
    ]
    for name, value in expected.items():
        found = operator.attrgetter(name)(work.recipe)
        assert (list(found) if isinstance(found, tuple) else found) == value, name
