"""Sizes of the parallel groups and of the batch: stated, derived from each other, or assumed and said so."""

from __future__ import annotations

import math
import re

from harness.evidence.ingest.record import Record
from projector.dataclass import dataclass

#: Fields of a recipe that are such sizes; what parts experts is 1 where nobody says.
SIZES = ("micro_batch_size", "global_batch_size", "seq_length", "tp", "pp", "vpp", "cp", "ep")

# Frameworks whose global batch is, unless asked otherwise, local batch × data-parallel ranks: torchtitan
# (training.global_batch_size = -1 in its job configuration).
_NO_ACCUMULATION = ("torchtitan", "torchtitan-graph", "torchtune")
# Frameworks whose sizes are axes of one mesh that multiply to all GPUs. Weights outside the experts are divided over
# fsdp and expert axes together (AI-Hypercomputer/maxtext MaxText/configs/base.yml, logical_axis_rules: embed).
_MESH = ("maxtext", "paxml")
_MEGATRON_ETP_IS_TP = ("megatron-lm", "primus", "megatron-deepspeed")

#: How many GPUs a cell says that names them: ``8xH100``, ``8 × NVIDIA H100``, ``MI300X x8``.
_COUNTED = re.compile(r"^\s*([0-9]{1,5})\s*[x×*]\s*(?=[A-Za-z])|\s[x×*]\s?([0-9]{1,5})\s*$")


@dataclass(frozen=True)
class Sizes:
    """The sizes that a recipe needs; None where one is neither stated nor derived (the record says so)."""

    gpus: int | None
    tp: int | None
    pp: int | None
    vpp: int | None
    cp: int | None
    ep: int | None
    etp: int
    dp: int | None
    micro_batch_size: int | None
    global_batch_size: int | None
    seq_length: int | None
    shard: int | None = None
    """Ranks that divide weights among them, where a mesh has fewer of them than data-parallel ranks."""

    @property
    def stated(self) -> dict[str, int]:
        """Returns the known fields of a recipe by name."""
        return {name: value for name in SIZES if (value := getattr(self, name)) is not None}

    @property
    def complete(self) -> bool:
        return self.gpus is not None and len(self.stated) == len(SIZES)


def sizes(record: Record, moe: bool, num_layers: int | None, framework: str, vpp_hint: int | None) -> Sizes:
    """Reads and completes the sizes of one record. Contradictions are refused with the numbers that contradict."""
    gpus = _required(record, "gpus", _gpu_count(record))
    split = {name: _size(record, name) for name in ("tp", "pp", "cp", "dp")}
    axes = _weight_ranks(record, split, gpus) if framework in _MESH else None
    _complete_split(record, split, gpus)
    seq = _required(record, "seq_length", record.integer("seq_length"))
    mbs, gbs = _batch_sizes(record, split["dp"], gpus, seq, framework)
    ep = _size(record, "ep") or (None if moe else 1)
    if ep is None:
        record.refuse("ep not stated (mixture-of-experts model)")
    return Sizes(
        **split,
        gpus=gpus,
        vpp=_virtual_stages(record, split["pp"], num_layers, vpp_hint),
        ep=ep,
        etp=_expert_tensor_size(record, split["tp"], moe, framework),
        micro_batch_size=mbs,
        global_batch_size=gbs,
        seq_length=seq,
        shard=axes if axes and split["dp"] and axes < split["dp"] else None,
    )


def _gpu_count(record: Record) -> int | None:
    """Returns the GPUs of a record: as stated, else by its nodes, or by the cell that names them. One that says another
    number is a doubt."""
    nodes, per_node = record.integer("nodes"), record.integer("gpus_per_node")
    named = record.text("gpu", "gpus")
    counted = _COUNTED.search(named)
    gpus = None if counted and record.get("gpu") is None else record.integer("gpus")
    beside = int(counted[1] or counted[2]) if counted else None
    per_node = per_node or (beside if nodes else None)
    by_nodes = nodes * per_node if nodes and per_node else None
    if gpus is None and (found := by_nodes or beside):
        record.map("gpus", found, "nodes × gpus_per_node" if by_nodes else named)
        return found
    if gpus and by_nodes not in (None, gpus):
        record.doubts.append(f"{gpus} GPUs are not {nodes} nodes of {per_node}")
    elif gpus and beside and gpus % beside:
        record.doubts.append(f"{gpus} GPUs are not some times {named}")
    return gpus


def _weight_ranks(record: Record, split: dict[str, int | None], gpus: int | None) -> int | None:
    """Returns the ranks over which a mesh divides weights; sets data-parallel ranks where the axes are stated one by one."""
    fsdp, ep = record.integer("fsdp", "other.fsdp"), record.integer("ep") or 1
    if not fsdp or not gpus:
        return None
    others = (split["tp"] or 1) * (split["pp"] or 1) * (split["cp"] or 1)
    stated = split["dp"]
    if stated and others * stated != gpus and others * stated * fsdp * ep == gpus:
        split["dp"] = stated * fsdp * ep
        record.map("dp", split["dp"], f"axes of the mesh: data {stated}, fsdp {fsdp}, expert {ep}")
    return fsdp * ep


def _size(record: Record, name: str) -> int | None:
    """Reads a stated size; one below 1 is refused."""
    value = record.integer(name)
    if value is not None and value < 1:
        record.refuse(f"{name} = {value} is not positive")
        return None
    return value


def _required(record: Record, name: str, value: int | None) -> int | None:
    if value is None:
        record.refuse(f"{name} not stated")
    elif value < 1:
        record.refuse(f"{name} = {value} is not positive")
        return None
    return value


def _complete_split(record: Record, split: dict[str, int | None], gpus: int | None) -> None:
    """Fills what the product tp·pp·cp·dp = gpus forces; context parallelism that nobody mentions is 1, by assumption."""
    known = math.prod(value or 1 for value in split.values())
    open_names = [name for name, value in split.items() if value is None]
    if gpus and known and gpus % known == 0:
        rest = gpus // known
        if rest == 1 or len(open_names) == 1:
            for name in open_names:
                split[name] = rest if len(open_names) == 1 else 1
                if name != "dp":
                    record.map(name, split[name], "gpus / the other sizes")
        elif split["cp"] is None and set(open_names) == {"cp", "dp"}:
            split["cp"], split["dp"] = 1, rest
            record.assume("cp=1 (not mentioned)")
    for name in ("tp", "pp", "cp"):
        if split[name] is None:
            record.refuse(f"{name} not stated")
    if gpus and None not in split.values() and math.prod(value or 1 for value in split.values()) != gpus:
        product = " × ".join(f"{name} {value}" for name, value in split.items())
        record.refuse(f"{product} is not {gpus} GPUs")


def _batch_sizes(
    record: Record, dp: int | None, gpus: int | None, seq: int | None, framework: str
) -> tuple[int | None, int | None]:
    mbs, gbs = _size(record, "micro_batch_size"), _size(record, "global_batch_size")
    accumulation = record.integer("other.grad_accum", "other.gradient_accumulation", "other.microbatches")
    local = record.integer("other.local_batch_size", "other.per_device_batch_size")
    if mbs is None and gbs and dp and accumulation and gbs % (dp * accumulation) == 0:
        mbs = gbs // (dp * accumulation)
        record.map("micro_batch_size", mbs, "global batch / (dp × accumulation)")
    if mbs is None and local and record.integer("pp") in (1, None):
        mbs = local
        record.map("micro_batch_size", mbs, "local batch without a pipeline")
    elif mbs is None and local and local % (record.integer("pp") or 1) == 0:
        mbs = 1
        record.assume("micro_batch_size=1 (local batch divided among the pipeline's micro-batches)")
    if gbs is None and mbs and dp and accumulation:
        gbs = mbs * dp * accumulation
        record.map("global_batch_size", gbs, "micro-batch × dp × accumulation")
    if gbs is None:
        gbs = _batch_from_rate(record, gpus, seq, dp)
    if gbs is None and mbs and dp and framework in _NO_ACCUMULATION and record.integer("pp") in (1, None):
        gbs = mbs * dp
        record.assume(f"global_batch_size={gbs} (not stated; no accumulation by default)")
    _required(record, "micro_batch_size", mbs)
    _required(record, "global_batch_size", gbs)
    if mbs and gbs and dp and gbs % (mbs * dp):
        record.refuse(f"global batch {gbs} is not a multiple of micro-batch {mbs} × dp {dp}")
    return mbs, gbs


def _batch_from_rate(record: Record, gpus: int | None, seq: int | None, dp: int | None) -> int | None:
    """Derives the global batch from tokens/s × step time, where it is whole (within 1 %) and divides among dp."""
    tgs, ms = record.number("metrics.tokens_per_s_per_gpu"), record.number("metrics.iteration_ms")
    if not (tgs and ms and gpus and seq):
        return None
    exact = tgs * gpus * ms / 1000 / seq
    whole = round(exact / (dp or 1)) * (dp or 1)
    if whole < 1 or abs(exact / whole - 1) > 0.01:
        return None
    record.map("global_batch_size", whole, "tokens/s × step time / sequence length")
    return whole


def _virtual_stages(record: Record, pp: int | None, num_layers: int | None, hint: int | None) -> int | None:
    stated = _size(record, "vpp")
    if pp == 1:
        return 1
    per_stage = record.integer("other.args.num_layers_per_virtual_pipeline_stage")
    if stated is None and per_stage and num_layers and pp and num_layers % (per_stage * pp) == 0:
        stated = num_layers // (per_stage * pp)
        record.map("vpp", stated, "num_layers_per_virtual_pipeline_stage")
    if stated is None and hint:
        record.map("vpp", hint, "schedule or layout")
        return hint
    if stated is None and pp is not None:
        record.assume("vpp=1 (not stated)")
        return 1
    return stated


def _expert_tensor_size(record: Record, tp: int | None, moe: bool, framework: str) -> int:
    stated = record.integer("etp", "other.args.expert_tensor_parallel_size", "other.expert_tensor_parallel_size")
    if not moe:
        return 1  # Megatron-LM sets and prints it for dense models, too
    if stated is not None or tp in (1, None):
        return stated or 1
    etp = tp if framework in _MEGATRON_ETP_IS_TP and tp is not None else 1
    record.assume(f"etp={etp} (not stated)")
    return etp
