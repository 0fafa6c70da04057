"""Kernel tables: reading them, scoring the kernel models on them, fitting the constants of kernel classes."""
