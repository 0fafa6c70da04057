"""What recipe fields declare of themselves, held against what they do."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from projector.workload import checks
from projector.workload.declared import AFFECTS, SAME, about_of
from projector.workload.fields import field_of, fields
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from projector.workload.schema import parse_recipe
from tests.conftest import ROOT
from tests.projector.workload.effects import JOBS, SIZES, effects

TOLD = about_of(Recipe)


@pytest.mark.parametrize("kind", [Recipe, LoRA])
def test_every_field_says_what_it_means_and_may_change(kind: type) -> None:
    for name, told in about_of(kind).items():
        assert told.help, name
        assert told.affects, name
        assert told.affects <= set(AFFECTS), name
        assert len(set(told.choices)) == len(told.choices), name
        assert SAME not in [each for names in told.names.values() for each in names], name


def test_a_name_means_one_field_of_a_framework() -> None:
    for framework in {framework for told in TOLD.values() for framework in told.names}:
        names = Counter(name for told in TOLD.values() for name in told.names.get(framework, ()))
        assert [name for name, count in names.items() if count > 1] == [], framework


def test_every_named_setting_is_one_that_the_loaders_know() -> None:
    """Names that a field is worked out from stand in the code that works it out."""
    folder = ROOT / "projector/intake"
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py")))
    for name, told in TOLD.items():
        assert [each for each in told.told_by if f'"{each}"' not in code] == [], name


def test_what_is_declared_is_what_is_checked_shown_and_hinted() -> None:
    by_key = {field.key: field for field in fields()}
    for name, told in TOLD.items():
        if name == "lora":
            continue
        field = by_key[name]
        words = (
            told.choices or field.choices if name == "pipeline_schedule" else told.choices
        )  # schedules name themselves
        assert (field.help, field.choices) == (told.help, words)
        assert all(field_of(each) is field for each in (name, *told.names.get("megatron", ()), *told.also))
        assert checks.CHOICES.get(name, ()) == words
        if field.kind in (int, float) and not field.many:
            for value in (told.most, told.most + 1, told.least, told.least - 1):
                _, problems = parse_recipe({**SIZES, name: field.kind(value)}, "f")
                inside = told.least <= value <= told.most or (field.kind is float and value == told.most)
                assert bool(problems) is not inside, (name, value, problems)
        if not field.many and told.choices:
            _, problems = parse_recipe({**SIZES, name: "no such word"}, "f")
            assert [(p.key, p.found) for p in problems] == [(f"recipe.{name}", "no such word")]
    long_names = [each for told in TOLD.values() for each in told.names.get("megatron", ()) if each not in TOLD]
    for each in long_names:
        _, problems = parse_recipe({**SIZES, each: 1}, "f")
        assert problems[0].expected == f"the field {field_of(each).path[0]}"  # type: ignore[union-attr]


@pytest.mark.parametrize("job", range(len(JOBS)), ids=lambda i: JOBS[i][0].model.name)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.night)])
def test_a_field_changes_nothing_that_it_does_not_declare(job: int, whole: bool) -> None:
    """Every field on a third of the jobs in each run of the tests, on every job at night."""
    work, cluster = JOBS[job]
    for field in fields() if whole else fields()[job % 3 :: 3]:
        told = TOLD[field.path[0]]
        for value, found in effects(work, cluster, field):
            assert found <= told.affects, (
                f"{field.key}={value!r} changes {', '.join(sorted(found - told.affects))}, too"
            )


def test_defaults_are_not_stated_or_sizes() -> None:
    for field in dataclasses.fields(Recipe):
        assert field.default in (dataclasses.MISSING, None, 1, False, "bf16"), field.name
