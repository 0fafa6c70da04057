"""The words in which layers and strategies speak: operators, weights, saved tensors, and the parts made of them."""
