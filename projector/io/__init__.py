"""Reads and writes files: bounded reading, whole-or-nothing writing, typed documents. All mistakes are reported at once."""
