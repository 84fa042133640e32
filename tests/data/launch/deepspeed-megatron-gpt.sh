#!/bin/bash
# Megatron-DeepSpeed: Megatron's arguments, and a configuration that the script writes.
CONFIG=ds.json
ZERO=1
MICRO=4
GLOBAL=512
cat <<EOT > $CONFIG
{
  "train_batch_size": 512,
  "train_micro_batch_size_per_gpu": 4,
  "steps_per_print": 1,
  "zero_optimization": {"stage": 1},
  "bf16": {"enabled": true}
}
EOT
deepspeed --num_nodes 4 --num_gpus 8 pretrain_gpt.py \
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 2 \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
    --seq-length 2048 --max-position-embeddings 2048 \
    --micro-batch-size $MICRO --global-batch-size $GLOBAL \
    --train-iters 1000 --lr 1e-4 --bf16 \
    --tokenizer-type GPT2BPETokenizer --vocab-file v.json --merge-file m.txt \
    --recompute-granularity full --recompute-method uniform \
    --attention-dropout 0 --hidden-dropout 0 \
    --deepspeed --deepspeed_config=$CONFIG --zero-stage=$ZERO
