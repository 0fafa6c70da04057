# A sweep to a table, and one projection to a card.
import projector as pj

table = pj.sweep(
    model="llama3.1_8b", gpu="h100", gpus=64, tp=[1, 2, 4], pp=[1, 2], use_distributed_optimizer=True
).to_pandas()
card = pj.project(model="llama3.1_8b", gpu="h100", gpus=64, tp=2, use_distributed_optimizer=True)
