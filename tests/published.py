"""Counts that are printed with few digits."""


def close(counted: int, printed: float) -> bool:
    """Within a thousandth, or one of the last printed digit (of a figure such as 22 B, of a tenth of that)."""
    text = str(int(printed))
    digits = len(text.rstrip("0"))
    return abs(counted - printed) <= max(1e-3 * printed, 10.0 ** (len(text) - max(3, digits)))
