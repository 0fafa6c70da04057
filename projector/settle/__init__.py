"""Turns a workload as it was written into one with nothing left open, with every assumption named."""
