"""What a vocabulary that nothing names is worth: the step between the smallest and the largest in use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from projector.workload.tokenizers import STANDS_IN

if TYPE_CHECKING:
    from projector.cli.inputs import Case

#: Vocabularies in use reach from Llama 2's to Gemma's.
_SIZES = (32_000, 256_000)


def ranged(case: Case) -> Case:
    """``case`` with the change of its step beside the vocabulary it assumes; as it is where a tokenizer is named."""
    if not any(STANDS_IN in text for text in case.assumed):
        return case
    from projector.projection import project

    def seconds(size: int | None) -> float:
        model = case.workload.model if size is None else replace(case.workload.model, vocab_size=size)
        workload = replace(case.workload, model=model)
        return project(workload, case.cluster, "simulate", settings=case.settings).step_seconds

    base = seconds(None)
    changes = (f"{100 * (seconds(size) / base - 1):+.1f} % with {size // 1000}k" for size in _SIZES)
    remark = f"; the step changes by {', '.join(changes)}"
    assumed = tuple(text.replace(STANDS_IN, STANDS_IN + remark) for text in case.assumed)
    return replace(case, assumed=assumed)
