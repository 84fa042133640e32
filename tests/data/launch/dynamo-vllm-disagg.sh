#!/bin/bash
set -e
MODEL="meta-llama/Llama-3.1-8B-Instruct"
trap 'echo Cleaning up...; kill 0' EXIT
python -m dynamo.frontend &
DYN_SYSTEM_PORT=8081 CUDA_VISIBLE_DEVICES=0 python3 -m dynamo.vllm --model $MODEL --is-decode-worker --max-num-seqs 128 &
DYN_SYSTEM_PORT=8082 CUDA_VISIBLE_DEVICES=1 python3 -m dynamo.vllm --model $MODEL --is-decode-worker --max-num-seqs 128 &
DYN_SYSTEM_PORT=8083 VLLM_NIXL_SIDE_CHANNEL_PORT=20097 CUDA_VISIBLE_DEVICES=2 python3 -m dynamo.vllm \
    --model $MODEL --is-prefill-worker \
    --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}' &
wait
