"""Generated training data: the same samples for every split of the same training."""

from __future__ import annotations

from typing import Any

_SKEW = 3.0  # exponent of the skew: rare tokens are rarer, so that a loss has something to fall to


def batch(torch: Any, vocabulary: int, samples: int, length: int, seed: int, step: int) -> tuple[Any, Any]:
    """(tokens, labels) of one global batch, int64 [samples, length] on the CPU; labels are the next tokens.

    Token numbers are uniform numbers to the power of :data:`_SKEW`: about as uneven as words of a language.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    drawn = torch.rand((samples, length + 1), generator=generator).pow_(_SKEW)
    tokens = (drawn * vocabulary).long().clamp_(max=vocabulary - 1)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
