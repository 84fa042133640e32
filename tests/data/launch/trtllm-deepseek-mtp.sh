#!/bin/bash
cat << EOF > /tmp/extra-llm-api-config.yml
cuda_graph_config:
  enable_padding: true
  max_batch_size: 128
enable_attention_dp: true
enable_chunked_prefill: true
kv_cache_config:
  dtype: fp8
  free_gpu_memory_fraction: 0.8
  enable_block_reuse: false
stream_interval: 10
speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: 3
print_iter_log: true
EOF
trtllm-serve deepseek-ai/DeepSeek-R1-0528 --host localhost --port 8000 --max_batch_size 64 --max_num_tokens 8192 \
  --tp_size 8 --ep_size 8 --pp_size 1 --kv_cache_free_gpu_memory_fraction 0.9 --trust_remote_code \
  --extra_llm_api_options /tmp/extra-llm-api-config.yml
