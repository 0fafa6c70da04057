"""Profiler traces of training steps: what ran, what was exposed, why the device waited, and the same of a projection."""
