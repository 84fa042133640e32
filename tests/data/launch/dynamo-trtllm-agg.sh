#!/usr/bin/env bash
export MODEL_PATH=${MODEL_PATH:-"Qwen/Qwen3-30B-A3B"}
cat > agg.yaml <<'YAML'
tensor_parallel_size: 2
enable_chunked_prefill: true
max_batch_size: 32
YAML
python3 -m dynamo.frontend &
python3 -m dynamo.trtllm --model-path "$MODEL_PATH" --served-model-name "$MODEL_PATH" \
  --extra-engine-args agg.yaml --trtllm.kv_cache_config.free_gpu_memory_fraction 0.7 --override-engine-args '{"max_batch_size": 48}' --publish-kv-events
