#!/usr/bin/env bash
NODE_RANK=${NODE_RANK:-0}
MODEL=/models/DeepSeek-R1
ARGS=(
  --model-path $MODEL
  --tp-size 72 --dp-size 72 --enable-dp-attention --nnodes 9 --node-rank $NODE_RANK --dist-init-addr 10.10.0.1:5757
  --moe-a2a-backend deepep --deepep-mode low_latency
  --ep-num-redundant-experts 32 --enable-eplb
  --enable-two-batch-overlap
  --moe-dense-tp-size 1 --enable-dp-lm-head
  --disaggregation-mode decode --disaggregation-ib-device mlx5_1 --disaggregation-transfer-backend mooncake
  --max-running-requests 18432 --mem-fraction-static 0.835 --cuda-graph-bs 256
  --context-length 4500 --decode-log-interval 1
)
python3 -m sglang.launch_server "${ARGS[@]}"
