"""Learns from measured runs how far a projector is off: one law, one fold rule, one interval."""
