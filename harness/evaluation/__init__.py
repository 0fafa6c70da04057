"""Projects cases with every predictor, corrects them by every fit, gives rows, and measures how long that takes."""
