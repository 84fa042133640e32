#!/bin/bash
mpirun -np 32 python pretrain_gpt.py \
    --use-megatron-fsdp \
    --data-parallel-sharding-strategy optim_grads_params \
    --num-distributed-optimizer-instances 4 \
    --use-distributed-optimizer \
    --no-gradient-accumulation-fusion \
    --ckpt-format fsdp_dtensor \
    --init-model-with-meta-device \
    --calculate-per-token-loss \
    --overlap-grad-reduce \
    --num-layers 40 --hidden-size 5120 --num-attention-heads 40 --ffn-hidden-size 13824 \
    --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights \
    --position-embedding-type rope --seq-length 4096 --max-position-embeddings 4096 \
    --attention-dropout 0.0 --hidden-dropout 0.0 \
    --micro-batch-size 1 --global-batch-size 512 \
    --recompute-activations \
    --bf16 --vocab-size 32000 --tokenizer-type NullTokenizer --optimizer sgd --sgd-momentum 0.9
