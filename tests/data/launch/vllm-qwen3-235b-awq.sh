export VLLM_USE_V1=1
CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve --tensor-parallel-size=4 --quantization=awq_marlin --enable-expert-parallel Qwen/Qwen3-235B-A22B --max-num-seqs=128 --reasoning-parser qwen3
