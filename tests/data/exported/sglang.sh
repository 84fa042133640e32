#!/usr/bin/env bash
# Written by crossflow VERSION: chat, ep72-re32-dp72-mb256 on 72 devices of h100-ib-cluster.
# crossflow reads the lines below back: what no flag says.
# crossflow: system: h100-ib-cluster
# The software's own settings are said as far as flags say them: overlap.
# crossflow: workload.prompt: 2000
# crossflow: workload.output: 500
# The model is named after the preset deepseek-v3; put the name of your own checkpoint of that size in its place.
# Start it on all 9 nodes, with NODE_RANK 0 to 8, and the address of the first as HEAD_ADDR.
python3 -m sglang.launch_server \
  --model-path deepseek-ai/DeepSeek-V3 \
  --tp-size 72 \
  --dp-size 72 \
  --enable-dp-attention \
  --ep-size 72 \
  --moe-a2a-backend deepep \
  --moe-dense-tp-size 1 \
  --enable-dp-lm-head \
  --enable-two-batch-overlap \
  --ep-num-redundant-experts 32 \
  --enable-eplb \
  --max-running-requests 18432 \
  --chunked-prefill-size 589824 \
  --context-length 2500 \
  --kv-cache-dtype fp8_e4m3 \
  --nnodes 9 \
  --node-rank "${NODE_RANK:-0}" --dist-init-addr "${HEAD_ADDR:-localhost}:20000"
