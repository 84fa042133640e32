cat > ./low_latency.yml <<EOF
moe_config:
  backend: TRTLLM
moe_expert_parallel_size: 2
disable_overlap_scheduler: true
cuda_graph_config: null
EOF
trtllm-serve serve deepseek-ai/DeepSeek-V3 --tp_size 8 --max_batch_size 16 --config ./low_latency.yml --reasoning_parser deepseek-r1
