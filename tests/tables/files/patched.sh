#!/bin/bash
PP=${1:-4}
MODEL=(--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
  --num-query-groups 8 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
  --untie-embeddings-and-output-weights --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256)
TRAIN=(
  --micro-batch-size 1  # --micro-batch-size 2 is too large
  --global-batch-size 128 --attention-dropout 0 --hidden-dropout 0 --bf16 --use-distributed-optimizer
  --tensor-model-parallel-size=2 --sequence-parallel
  --pipeline-model-parallel-size ${PP}
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
)
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py "${MODEL[@]}" "${TRAIN[@]}"
