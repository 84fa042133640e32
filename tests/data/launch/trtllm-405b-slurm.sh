#!/bin/bash
#SBATCH -N 2
#SBATCH --ntasks 16
#SBATCH --ntasks-per-node=8
#SBATCH -p batch
srun -l --container-image ${container} --mpi=pmix \
  bash -c "trtllm-llmapi-launch true"
srun -N 2 --ntasks-per-node 8 --mpi=pmix trtllm-llmapi-launch trtllm-serve /models/Llama-3.1-405B-Instruct \
  --tp_size 8 --pp_size 2 --max_batch_size 128 --enable_chunked_prefill --kv_cache_free_gpu_memory_fraction 0.95
