"""torchtitan's job configurations: the sections of a TOML (or YAML) file, in the words of several generations.

Words and defaults: pytorch/torchtitan torchtitan/config/job_config.py, and config_manager.py of 2024 for the older names.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from projector.errors import InputError, Problem, Unsupported
from projector.intake import primus_torchtitan
from projector.intake.loaded import Loaded
from projector.intake.primus_built import flat
from projector.intake.primus_experiment import Experiment
from projector.intake.spelling import misspelt
from projector.intake.torchtitan_words import READ, SECTIONS, is_neutral
from projector.workload.model import Model

_DEGREES = (
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "data_parallel_replicate",
    "data_parallel_shard",
)
#: Names of 2024 for those of today.
_OLD = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.enable_float8_linear": "float8.enable_float8_linear",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    **{
        f"{section}.{degree}_degree": f"parallelism.{degree}_degree"
        for section in ("training", "experimental")
        for degree in _DEGREES
    },
    **{
        f"{section}.{name}": f"parallelism.{name}"
        for section in ("training", "experimental")
        for name in (
            "enable_async_tensor_parallel",
            "pipeline_parallel_schedule",
            "pipeline_parallel_microbatches",
            "pipeline_parallel_split_points",
            "fsdp_reshard_after_forward",
            "enable_compiled_autograd",
            "disable_loss_parallel",
            "context_parallel_rotate_method",
        )
    },
}
#: Where torchtitan's defaults are not those of the experiments that Primus ships for it.
_DEFAULTS: Mapping[str, object] = {
    "compile.enable": False,
    "activation_checkpoint.mode": "selective",
    "activation_checkpoint.selective_ac_option": "2",
    "training.mock_data": False,
}
_CUTS = ("parallelism.pipeline_parallel_split_points", "parallelism.module_fqns_per_model_part")
_NOT_LANGUAGE = ("flux", "llama3_vlm", "vlm", "qwen3_vl", "llama_multimodal", "wan")


def is_job(mapping: Mapping[str, object]) -> bool:
    """Whether the sections of a mapping are those of a torchtitan job."""
    model, training = mapping.get("model"), mapping.get("training")
    if not isinstance(model, Mapping) or not isinstance(training, Mapping):
        return False
    sections = {"job", "parallelism", "activation_checkpoint", "metrics", "lr_scheduler", "experimental"} & set(mapping)
    return "flavor" in model or ("name" in model and bool(sections))


def parse(text: str, where: str, named: str = "") -> dict[str, object]:
    """The sections of a TOML file. Raises :class:`InputError`."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError([Problem(where, named, str(error)[:120], "valid TOML")]) from None


def renamed(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings under today's names; of two names for one, today's counts."""
    old = {_OLD[key]: value for key, value in settings.items() if key in _OLD}
    stages = settings.get("experimental.pipeline_parallel_degree", settings.get("training.pipeline_parallel_degree"))
    if stages is not None:  # then a batch was cut into as many as there are stages
        old = {"parallelism.pipeline_parallel_microbatches": stages, **{k: v for k, v in old.items() if v is not None}}
    return {**old, **{key: value for key, value in settings.items() if _OLD.get(key, key) == key}}


def load(content: Mapping[str, object], where: str, *, gpus: int | None, model: Model | None) -> Loaded:
    """The workload of a job configuration (nested or dotted keys). ``gpus``: None where only the degrees say how many.

    Raises :class:`InputError` with everything that does not fit, :class:`Unsupported` for what nothing lowers.
    """
    settings = renamed(flat(content))
    name = str(settings.get("model.name", ""))
    if name in _NOT_LANGUAGE:
        raise Unsupported(f"{where}: model.name {name}: not a language model")
    problems = [*_near(settings, where)]
    if "training.seq_len" not in settings:
        problems.append(Problem(where, "training.seq_len", "nothing", "the length of the sequences"))
    if problems:
        raise InputError(problems)
    if settings.get("float8.enable_float8_linear") is True:
        settings["model.converters"] = ["float8"]
    settings |= _micro_batches(settings, where)
    stated = gpus
    degrees = _product(settings)
    if gpus is None:
        gpus = degrees
    if gpus is None and _whole(settings.get("parallelism.data_parallel_replicate_degree"), 1) > 1:
        open_ = "replicas of shards over all ranks that are left"
        raise InputError([Problem(where, "gpus", open_, "--gpus N, or a data_parallel_shard_degree above 0")])
    if stated is not None and degrees is not None and stated != degrees:
        found = f"{stated}, and degrees whose product is {degrees}"
        raise InputError(
            [Problem(where, "gpus", found, "the product of the degrees, or data_parallel_shard_degree = -1")]
        )
    experiment = Experiment(
        where=where,
        framework="torchtitan",
        model_name=model.name if model else str(settings.get("model.flavor", "")),
        trainer="",
        settings=_nested({**_DEFAULTS, **settings}),
        overrides=settings,
        env={},
        gpus=gpus,
    )
    loaded = primus_torchtitan.load(experiment, model)
    counted: tuple[str, ...] = (
        (f"gpus={gpus} (the product of the degrees)",) if stated is None and gpus is not None else ()
    )
    if "activation_checkpoint.mode" not in settings:
        counted += ("activation_checkpoint=every second layer (torchtitan's default)",)
    return replace(loaded, assumed=(*counted, *loaded.assumed))


def _near(settings: Mapping[str, object], where: str) -> Iterable[Problem]:
    """Slips of the pen: a key that no generation has and that misspells one that decides something."""
    for key, value in settings.items():
        if key in READ or (is_neutral(key) and key.partition(".")[0] in SECTIONS):
            continue
        section, _, name = key.partition(".")
        alike = misspelt(section, SECTIONS) if section not in SECTIONS else (section,)
        known = [*(word.partition(".")[2] for word in READ if word.partition(".")[0] in alike)]
        names = (name,) if name in known else misspelt(name, known)
        if alike and names and f"{alike[0]}.{names[0]}" != key:
            yield Problem(where, key, value, f"a known setting; nearest: {alike[0]}.{names[0]}")


def _micro_batches(settings: Mapping[str, object], where: str) -> dict[str, object]:
    """The size of a micro-batch where their number is stated (until 2025). Stages cut by hand are refused."""
    pp = _whole(settings.get("parallelism.pipeline_parallel_degree"), 1)
    if pp <= 1:
        return {}
    cut = next((key for key in _CUTS if settings.get(key)), None)
    if cut is not None:
        raise Unsupported(f"{where}: {cut}: pipeline stages cut by hand")
    given = settings.get("parallelism.pipeline_parallel_microbatches")
    if given is None:
        return {}
    local, count = _whole(settings.get("training.local_batch_size"), 8), _whole(given, pp)
    if count < 1 or local % count:
        expected = f"a number that divides the {local} samples of training.local_batch_size"
        raise InputError([Problem(where, "parallelism.pipeline_parallel_microbatches", count, expected)])
    return {"parallelism.pipeline_parallel_microbatch_size": local // count}


def _product(settings: Mapping[str, object]) -> int | None:
    """GPUs that the degrees make, None where the shards are all that is left."""
    shards = _whole(settings.get("parallelism.data_parallel_shard_degree"), -1)
    degrees = [_whole(settings.get(f"parallelism.{name}_degree"), 1) for name in _DEGREES[:-1]]
    return math.prod([*degrees, shards]) if shards > 0 and min(degrees) > 0 else None


def _whole(value: object, default: int) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value):
        return int(value)
    return value if type(value) is int else default


def _nested(settings: Mapping[str, object]) -> dict[str, object]:
    made: dict[str, object] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        inside = made
        for part in path:
            step = inside.setdefault(part, {})
            inside = step if isinstance(step, dict) else {}
        inside[last] = value
    return made
