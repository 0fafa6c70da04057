"""Lists the optimizers that a recipe may name, and the names that trainers have for them."""

from __future__ import annotations

#: ``sgd``: with momentum, as Megatron-LM's (``--sgd-momentum``, 0.9); ``sgd_no_momentum``: as optax's and torch's default.
OPTIMIZERS = (
    *("adam", "adamw", "sgd", "muon", "dist_muon", "adafactor", "lion", "schedule_free_adamw", "adam_8bit", "adam_fp8"),
    *("adam_4bit", "lion_8bit", "lamb", "sgd_no_momentum"),
)

#: In lower case, without ``-`` and ``_``: names of apex and DeepSpeed, NeMo 1 and 2, Transformers (``--optim``),
#: bitsandbytes, torchao and llm-foundry.
_NAMES = {
    "adam": "fusedadam fusedadamw megatronfusedadam distributedfusedadam mcoredistributedoptim adampax",
    "adamw": "adamwtorch adamwtorchfused adamwhf adamwapexfused adamwanyprecision adamw32bit decoupledadamw torchadamw",
    "adam_8bit": "adamw8bit adamwbnb8bit adambnb8bit adamwtorch8bit",
    "adam_4bit": "adamw4bit adamwtorch4bit",
    "adam_fp8": "adamwfp8",
    "lion": "lion32bit lionw decoupledlionw",
    "lion_8bit": "lionbnb8bit",
    "lamb": "fusedlamb",
    "sgd": "fusedsgd",
    "schedule_free_adamw": "schedulefree adamwschedulefree",
}
_ALIASES = {name.replace("_", ""): name for name in OPTIMIZERS}
_ALIASES |= {alias: name for name, aliases in _NAMES.items() for alias in aliases.split()}


def named(word: str) -> str:
    """Returns the name of the optimizer that a trainer calls ``word``; a word that no trainer uses stays as it is."""
    return _ALIASES.get(word.strip().lower().replace("_", "").replace("-", ""), word)
