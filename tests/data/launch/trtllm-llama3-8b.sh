trtllm-serve meta-llama/Llama-3.1-8B-Instruct --backend pytorch --host 0.0.0.0 --port 8000 --max_batch_size 256 --max_num_tokens 4096 --max_seq_len 4096
