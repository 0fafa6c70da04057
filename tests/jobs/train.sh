#!/bin/bash
TP=${TP:-2}
torchrun --nproc_per_node 8 --nnodes "$NNODES" pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention \
    --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm \
    --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear --vocab-size 128256 \
    --tensor-model-parallel-size "$TP" --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce \
    --micro-batch-size 1 --global-batch-size 256 --bf16
