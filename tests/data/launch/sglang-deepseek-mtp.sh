#!/bin/bash
export SGLANG_ENABLE_JIT_DEEPGEMM=1
python3 -m sglang.launch_server --model deepseek-ai/DeepSeek-V3-0324 --tp 8 --trust-remote-code \
  --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \
  --max-running-requests 128 --attention-backend fa3 --disable-radix-cache
