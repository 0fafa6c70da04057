"""Which kernels a framework joins and what their joining leaves in memory: one file a named set."""
