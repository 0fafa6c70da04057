"""Rules as plain values: what they read, and that columns of layouts are answered as each layout alone."""

import random
from dataclasses import fields, replace
from typing import Any

import pytest
from tabled import tabled

from projector.settle import launch
from projector.workload import rules, zoo
from projector.workload.recipe import Recipe
from projector.workload.rule import Rule
from projector.workload.validate import LAYOUT_SIZES
from projector.workload.value_checks import CHOICES
from projector.workload.workload import Workload

EVERY: dict[Rule, None] = dict.fromkeys(
    (*rules.DIVISIONS, *rules.TOGETHER, *rules.SUMMA, *(rule for each in launch.RULES.values() for rule in each))
)
MODELS = ("llama3_8b", "deepseek_v3", "gemma3n_e4b", "t5_small", "llava_1.5_7b", "jamba_1.5_mini")


def sizes(rng: random.Random) -> dict[str, Any]:
    found = {
        name: rng.choice((1, 1, 2, 3, 4, 8)) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size")
    }
    return found | {"global_batch_size": rng.choice((7, 64, 512)), "seq_length": rng.choice((1004, 4096))}


def switches(rng: random.Random) -> dict[str, Any]:
    """A recipe's other fields, some of them stated."""
    found: dict[str, Any] = {}
    for field in fields(Recipe):
        kind = str(field.type)
        if field.name in LAYOUT_SIZES or rng.random() > 0.15:
            continue
        if field.name in CHOICES:
            word = rng.choice(CHOICES[field.name])
            found[field.name] = (word,) if "tuple" in kind else word
        elif "tuple[int" in kind:
            found[field.name] = rng.choice(((0, 1), (512, 4000)))
        elif "bool" in kind:
            found[field.name] = rng.choice((True, False))
        elif "int" in kind:
            found[field.name] = rng.choice((1, 2, 3, 40))
        elif field.name == "fast_domain":
            found[field.name] = rng.choice(("tp2.cp2", "dp8", "pp2"))
    return found


def drawn(seed: int, **held: Any) -> Workload:
    rng = random.Random(seed)
    recipe = Recipe(**(sizes(rng) | switches(rng) | held))
    framework = rng.choice(("megatron-lm", "primus", "torchtitan", "analytic"))
    gpus = rng.choice((8, 12, 64, 256))
    return Workload(model=zoo.load(MODELS[seed % len(MODELS)]), recipe=recipe, gpus=gpus, framework=framework)


def broken(rule: Rule, workload: Workload) -> bool:
    """Whether a rule is; some may be asked of whole replicas alone."""
    whole = workload.gpus % workload.recipe.replica_ranks == 0
    return (whole or "microbatches" not in rule.reads) and bool(rule.problems(workload))


@pytest.mark.parametrize("seed", range(40))
def test_no_rule_depends_on_a_field_that_it_is_not_said_to_read(seed: int) -> None:
    """A search asks a rule once for all layouts that are alike in ``reads``."""
    one, other = drawn(seed), drawn(seed + 1000)
    for rule in EVERY:
        read = {name: getattr(one.recipe, name) for name in rule.reads if hasattr(one.recipe, name)}
        if "microbatches" in rule.reads:
            names = ("tp", "tp2", "pp", "cp", "micro_batch_size", "global_batch_size")
            read |= {name: getattr(one.recipe, name) for name in names}
        alike = replace(one, recipe=replace(other.recipe, **read))
        assert broken(rule, one) == broken(rule, alike), rule.key


def test_every_case_of_a_rule_is_told_with_what_was_found() -> None:
    found = Rule("recipe.tp", lambda m, r, w: [each for each in (3, 5) if r.tp % each], "a multiple of {0}, not {r.tp}")
    said = [str(each) for each in found.problems(drawn(0, tp=9), "file.yaml")]
    assert said == ["file.yaml: recipe.tp: found 9, expected a multiple of 5, not 9"]
    two = found.problems(drawn(0, tp=7))
    assert [each.expected for each in two] == ["a multiple of 3, not 7", "a multiple of 5, not 7"]
    assert found.reads == {"tp"}
    assert not found.problems(drawn(0, tp=15))


@pytest.mark.parametrize(
    ("framework", "broken", "mended", "key"),
    tabled("workloads", "refused_and_mended"),
)  # fmt: skip
def test_what_a_framework_refuses_and_what_mends_it(
    framework: str, broken: dict[str, Any], mended: dict[str, Any], key: str
) -> None:
    def refused(stated: dict[str, Any]) -> set[str]:
        fields = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096, "framework": framework, **stated}
        model = zoo.load(fields.pop("model", "llama3_8b"))
        workload = Workload(model=model, gpus=64, framework=fields.pop("framework"), recipe=Recipe(**fields))
        return {problem.key for problem in launch.problems(workload)}

    assert f"recipe.{key}" in refused(broken)
    assert f"recipe.{key}" not in refused({**broken, **mended})
