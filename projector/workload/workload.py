"""Joins a model, a recipe and the number of GPUs: the input of a projection, with the sizes that follow from it."""

from __future__ import annotations

import re
from dataclasses import field

from projector.dataclass import dataclass
from projector.size import most
from projector.workload.field_facts import about
from projector.workload.model import Model
from projector.workload.recipe import Recipe

#: The form of a stack's date.
MONTH = "a month as text: YYYY-MM"


def is_month(text: str) -> bool:
    return re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", text) is not None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model to train by a recipe on a number of GPUs, by a framework (a name of ``projector/frameworks``).

    ``framework_date`` (``YYYY-MM``; empty: unknown) selects among defaults that changed between releases.
    """

    model: Model
    recipe: Recipe
    gpus: int = field(metadata=about(most=1_000_000))
    framework: str = "megatron-lm"
    framework_date: str = ""

    @property
    def dp(self) -> int:
        """Returns the data-parallel ranks of the dense weights, context-parallel ranks not counted."""
        return self.gpus // self.recipe.replica_ranks

    @property
    def edp(self) -> int:
        """Returns the data-parallel ranks of the expert weights (Megatron's EP folding)."""
        r = self.recipe
        return most(1, self.gpus // (r.etp * r.ep * r.pp))

    @property
    def alone(self) -> bool:
        """Returns whether no two ranks hold the same weights, so that nothing is reduced, gathered or shared out."""
        return self.dp * self.recipe.cp == 1 and not (self.model.moe and self.edp > 1)

    @property
    def num_microbatches(self) -> int:
        r = self.recipe
        return r.global_batch_size // (r.micro_batch_size * self.dp)

    @property
    def tokens_per_step(self) -> int:
        return self.recipe.global_batch_size * self.recipe.sequences * self.recipe.seq_length

    @property
    def padded_vocab_size(self) -> int:
        """Returns the vocabulary as Megatron pads it: to a multiple of ``make_vocab_size_divisible_by`` × tp."""
        unit = (self.recipe.make_vocab_size_divisible_by or 128) * self.recipe.tp
        return -(-self.model.vocab_size // unit) * unit
