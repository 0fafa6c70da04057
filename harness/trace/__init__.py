"""Profiler traces of training steps: which kernels ran, their exposed time, the causes of idle time, and the projection
beside it."""
