"""accelerate in front of a program: its configuration file and the options of ``accelerate launch`` over it.

Names and values: ``dialects/accelerate.yaml``.
"""

from __future__ import annotations

from dataclasses import replace

from projector.errors import InputError
from projector.intake.dialect import Settings, dialect
from projector.intake.script_files import mapping_beside
from projector.intake.shell.launch import Launch, Step, Way
from projector.intake.values import literal, section

_COUNTS = ("num_processes", "num_machines")


def handed_on(launch: Launch, way: Way) -> tuple[Launch, dict[str, object], tuple[str, ...]]:
    """``launch`` with the counts of processes that accelerate's file states, the arguments that it hands on to the trainer
    (types, DeepSpeed's configuration, FSDP's), and what nothing models; of another launcher all as it was.

    Raises :class:`InputError` for a file that is not at hand and for values that are none, :class:`Unsupported` for a run
    that accelerate cuts by other means.
    """
    at = next((number for number, step in enumerate(launch.steps) if step.kind == "accelerate"), None)
    if at is None:
        return launch, {}, ()
    options = dict(launch.steps[at].options)
    name = options.pop("config_file", "")
    stated = mapping_beside(name, launch, way, launch.place, "config_file") if name else {}
    said = {key: literal(value) for key, value in options.items() if key not in _COUNTS}
    where = way.unknowns.shown(name) or launch.place
    job = Settings(dialect("accelerate"), {**stated, **said}, where)
    given = {key: value for key, value in job.fields.items() if value is not None}
    optional = {key for key in job.stated if key.startswith("fsdp_config.")}
    shards = {**section(stated, "fsdp_config"), **{key.partition(".")[2]: job.stated[key] for key in optional}}
    if shards:
        given = {"fsdp": "full_shard", **given, "fsdp_config": shards}
    if "deepspeed" not in given and (job.args.raw("distributed_type") == "DEEPSPEED" or job.args.flag("use_deepspeed")):
        given["deepspeed"] = _zero(job)
    job.args.used |= {*_COUNTS, "fsdp_config", *optional}
    left = job.unread(written=False)
    if job.problems:
        raise InputError(job.problems)
    if name:
        counts = {key: str(stated[key]) for key in _COUNTS if stated.get(key) is not None}
        steps = [*launch.steps]
        steps[at] = Step("accelerate", {**counts, **options})
        launch = replace(launch, steps=tuple(steps))
    return launch, given, left.unmodelled


def _zero(job: Settings) -> dict[str, object]:
    """DeepSpeed's configuration that accelerate makes of its own words; without a stage its own default, the second."""
    devices = {part: job.args.word(f"deepspeed_config.offload_{part}_device") for part in ("optimizer", "param")}
    offloads = {f"offload_{part}": {"device": device} for part, device in devices.items() if device}
    stage = job.args.raw("deepspeed_config.zero_stage")
    return {"zero_optimization": {"stage": 2 if stage is None else stage, **offloads}}
