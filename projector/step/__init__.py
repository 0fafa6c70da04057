"""Computes one training step from the times of its parts: phases, stages, exchange, overlap, the optimizer."""
