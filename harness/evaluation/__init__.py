"""Cases × predictors × fits → rows, and how long it takes."""
