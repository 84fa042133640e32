#!/usr/bin/env bash
# A mixture of 256 experts over 1,024 devices, with stages of a layout of their own.
NNODES=128
torchrun --nnodes=$NNODES --nproc-per-node=8 --rdzv-backend=c10d pretrain_gpt.py \
  --pipeline-model-parallel-size 16 \
  --pipeline-model-parallel-layout "Et*3|(tt|)*29,m|L" \
  --expert-model-parallel-size 64 --expert-tensor-parallel-size 1 \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 \
  --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm \
  --num-experts 256 --moe-layer-freq "([0]*3+[1]*58)" --moe-ffn-hidden-size 2048 \
  --moe-shared-expert-intermediate-size 2048 --moe-router-topk 8 --moe-router-enable-expert-bias \
  --moe-router-score-function sigmoid --moe-router-num-groups 8 --moe-router-group-topk 4 \
  --moe-token-dispatcher-type flex --moe-enable-deepep --mtp-num-layers 1 \
  --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --rope-type yarn \
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
  --attention-dropout 0 --hidden-dropout 0 \
  --micro-batch-size 1 --global-batch-size 8192 \
  --recompute-granularity selective --recompute-modules mla_up_proj moe_act layernorm \
  --bf16 --fp8-format e4m3 --fp8-recipe blockwise \
  --vocab-size 129280 --tokenizer-type NullTokenizer --mock-data
