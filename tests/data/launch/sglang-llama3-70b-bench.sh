#!/bin/bash
TP=4
python -m sglang.launch_server --model-path meta-llama/Llama-3.3-70B-Instruct --tp-size $TP --dp $((8/TP)) \
  --quantization fp8 --kv-cache-dtype fp8_e5m2 --chunked-prefill-size 4096 --max-running-requests 256 --disable-cuda-graph --log-level warning &
python -m sglang.bench_serving --backend sglang --dataset-name random --random-input-len 1024 --random-output-len 512 --num-prompts 1000
