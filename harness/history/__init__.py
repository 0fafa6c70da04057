"""Accuracy over versions of the code: evaluations that were recorded, and the change at which a row broke."""
