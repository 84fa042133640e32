vllm serve deepseek-ai/DeepSeek-V3-0324 -tp 8 --max-num-seqs 32 \
  --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}' --no-enable-prefix-caching
