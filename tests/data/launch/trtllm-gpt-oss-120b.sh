cat > gptoss.yaml <<'YAML'
enable_attention_dp: false
cuda_graph_config:
  enable_padding: true
moe_config:
  backend: TRITON
scheduler_config:
  capacity_scheduler_policy: MAX_UTILIZATION
YAML
mpirun -n 1 --oversubscribe trtllm-serve openai/gpt-oss-120b --tp_size 4 --ep_size 4 --max_batch_size 640 --config gptoss.yaml --max_num_tokens 20000
python -m tensorrt_llm.serve.scripts.benchmark_serving --model openai/gpt-oss-120b --random-input-len 1024 --random-output-len 2048
