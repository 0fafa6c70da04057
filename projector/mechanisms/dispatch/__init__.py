"""How tokens reach their experts beyond what a recipe's dispatcher says: one file a strategy."""
