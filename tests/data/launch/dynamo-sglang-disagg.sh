#!/bin/bash
cleanup() {
    kill $DYNAMO_PID $PREFILL_PID 2>/dev/null || true
}
trap cleanup EXIT INT TERM
python3 -m dynamo.frontend --http-port 8000 &
DYNAMO_PID=$!
CUDA_VISIBLE_DEVICES=0,1 python3 -m dynamo.sglang \
  --model-path Qwen/Qwen3-32B \
  --served-model-name Qwen/Qwen3-32B \
  --page-size 16 --tp 2 --trust-remote-code \
  --disaggregation-mode prefill --disaggregation-bootstrap-port 12345 --host 0.0.0.0 \
  --disaggregation-transfer-backend nixl --enable-metrics &
PREFILL_PID=$!
CUDA_VISIBLE_DEVICES=2,3,4,5 python3 -m dynamo.sglang \
  --model-path Qwen/Qwen3-32B \
  --served-model-name Qwen/Qwen3-32B \
  --page-size 16 --tp 4 --trust-remote-code \
  --disaggregation-mode decode --disaggregation-bootstrap-port 12345 --host 0.0.0.0 \
  --disaggregation-transfer-backend nixl --max-running-requests 96
