#!/bin/bash
TP=16
python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 \
  --tp $TP --trust-remote-code --host 0.0.0.0 \
  --nnodes 2 --node-rank $NODE_RANK --dist-init-addr 10.0.0.1:5000 \
  --max-running-requests 256 --disable-radix-cache
