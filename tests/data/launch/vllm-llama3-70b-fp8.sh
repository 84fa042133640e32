#!/bin/bash
MODEL="meta-llama/Llama-3.3-70B-Instruct"
TP=4
# the server
vllm serve $MODEL \
  --host 0.0.0.0 --port 8000 \
  --tensor-parallel-size $TP \
  --quantization fp8 \
  --kv-cache-dtype fp8 \
  --max-model-len 16K \
  --max-num-seqs 256 \
  --max-num-batched-tokens 8192 \
  --async-scheduling \
  --disable-log-requests &

# and its load
vllm bench serve --model $MODEL --dataset-name random --random-input-len 1024 --random-output-len 512 --num-prompts 1000
