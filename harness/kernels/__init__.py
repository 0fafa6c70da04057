"""Reads kernel tables, scores the kernel models on them, and fits the constants of kernel classes."""
