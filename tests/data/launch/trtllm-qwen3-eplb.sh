cat > eplb.yaml <<'YAML'
enable_attention_dp: true
enable_chunked_prefill: true
moe_config:
  backend: WIDEEP
  load_balancer:
    num_slots: 160
    layer_updates_per_iter: 2
YAML
trtllm-serve Qwen/Qwen3-235B-A22B --tp_size 16 --ep_size 16 --max_batch_size 32 --extra_llm_api_options eplb.yaml
