"""From a workload as it was written to one with nothing left open, with every assumption named."""
