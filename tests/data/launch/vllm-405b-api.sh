python3 -m vllm.entrypoints.openai.api_server \
    --model /models/Meta-Llama-3.1-405B-Instruct \
    -tp 8 -pp 2 --dtype bfloat16 --max_num_seqs 128 --enforce-eager \
    --distributed-executor-backend ray --swap-space 16 --cpu-offload-gb 10
