# node 1
python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 16 --dp-size 16 --enable-dp-attention \
  --dist-init-addr 10.0.0.1:5000 --nnodes 2 --node-rank 0 --trust-remote-code --kv-cache-dtype fp8_e4m3 --max-running-requests 512
# node 2
python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 16 --dp-size 16 --enable-dp-attention \
  --dist-init-addr 10.0.0.1:5000 --nnodes 2 --node-rank 1
