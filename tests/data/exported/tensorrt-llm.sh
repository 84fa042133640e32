#!/usr/bin/env bash
# Written by crossflow VERSION: chat, ep16-dp16-mb32 on 16 devices of h100-ib-cluster.
# crossflow reads the lines below back: what no flag says.
# crossflow: system: h100-ib-cluster
# crossflow: workload.prompt: 2000
# crossflow: workload.output: 500
# crossflow: workload.serving.speculation.acceptance: 0.7
# crossflow: workload.serving.speculation.cost: 0.0
# crossflow: workload.serving.speculation.draft: null
# The model is named after the preset deepseek-v3; put the name of your own checkpoint of that size in its place.
cat > trtllm.yaml <<'YAML'
enable_attention_dp: true
enable_chunked_prefill: true
speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: 2
YAML
srun --nodes 2 --ntasks-per-node 8 --mpi pmix trtllm-llmapi-launch trtllm-serve deepseek-ai/DeepSeek-V3 \
  --tp_size 16 \
  --ep_size 16 \
  --max_batch_size 32 \
  --max_seq_len 2500 \
  --extra_llm_api_options trtllm.yaml
