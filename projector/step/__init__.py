"""One training step from the times of its parts: phases, stages, exchange, what hides behind what, the optimizer."""
