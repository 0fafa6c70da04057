"""Lists the optimizers that a recipe may name, and the names that trainers have for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: ``sgd``: with momentum, as Megatron-LM's (``--sgd-momentum``, 0.9); ``sgd_no_momentum``: as optax's and torch's default.
OPTIMIZERS = (
    *("adam", "adamw", "sgd", "muon", "dist_muon", "adafactor", "lion", "schedule_free_adamw", "adam_8bit", "adam_fp8"),
    *("adam_4bit", "lion_8bit", "lamb", "sgd_no_momentum"),
)

#: In lower case, without ``-`` and ``_``: names of apex and DeepSpeed, NeMo 1 and 2, Transformers (``--optim``),
#: bitsandbytes, torchao and llm-foundry.
_ALIASES: Mapping[str, str] = MappingProxyType(
    {name.replace("_", ""): name for name in OPTIMIZERS}
    | dict.fromkeys(("fusedadam", "fusedadamw", "megatronfusedadam", "distributedfusedadam"), "adam")
    | dict.fromkeys(("mcoredistributedoptim", "adampax"), "adam")
    | dict.fromkeys(
        ("adamwtorch", "adamwtorchfused", "adamwhf", "adamwapexfused", "adamwanyprecision", "adamw32bit"), "adamw"
    )
    | dict.fromkeys(("decoupledadamw", "torchadamw"), "adamw")
    | dict.fromkeys(("adamw8bit", "adamwbnb8bit", "adambnb8bit", "adamwtorch8bit"), "adam_8bit")
    | dict.fromkeys(("adamw4bit", "adamwtorch4bit"), "adam_4bit")
    | {"adamwfp8": "adam_fp8", "lionbnb8bit": "lion_8bit", "lion32bit": "lion", "fusedlamb": "lamb"}
    | dict.fromkeys(("lionw", "decoupledlionw"), "lion")
    | {"fusedsgd": "sgd", "schedulefree": "schedule_free_adamw", "adamwschedulefree": "schedule_free_adamw"}
)


def named(word: str) -> str:
    """Returns the name of the optimizer that a trainer calls ``word``; a word that no trainer uses stays as it is."""
    return _ALIASES.get(word.strip().lower().replace("_", "").replace("-", ""), word)
