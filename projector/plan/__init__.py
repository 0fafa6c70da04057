"""Forecasts a whole run: days, GPU-hours, energy and money for a number of tokens, under failures, with intervals."""
