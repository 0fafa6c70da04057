"""Compares runs side by side: the figures of each, the certainty of the difference, and one sentence of verdict."""
