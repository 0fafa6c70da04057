"""How tokens reach their experts beyond what a recipe's dispatcher says: a file a family of strategies."""
