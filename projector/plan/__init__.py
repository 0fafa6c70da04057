"""What a whole run will take: days, GPU-hours, energy and money for a number of tokens, under failures, with intervals."""
