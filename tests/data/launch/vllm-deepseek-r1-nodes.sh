#!/bin/bash
# Node 0
vllm serve deepseek-ai/DeepSeek-R1 --enable-expert-parallel \
  --tensor-parallel-size 1 --data-parallel-size 16 --data-parallel-size-local 8 \
  --data-parallel-address 10.99.48.128 --data-parallel-rpc-port 13345 \
  --all2all-backend deepep_low_latency --max-num-seqs 64 --trust-remote-code \
  --kv-cache-dtype fp8_e4m3 --api-server-count=8
# Node 1
vllm serve deepseek-ai/DeepSeek-R1 --enable-expert-parallel \
  --tensor-parallel-size 1 --data-parallel-size 16 --data-parallel-size-local 8 \
  --data-parallel-start-rank 8 --headless --max-num-seqs 64
