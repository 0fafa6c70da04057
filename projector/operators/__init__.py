"""The types that layers and strategies exchange: operators, weights, saved tensors, modules and blocks."""
