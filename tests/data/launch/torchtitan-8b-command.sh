#!/usr/bin/bash
NGPU=${NGPU:-16}
CONFIG=./torchtitan-llama3-8b.toml
torchrun --nproc_per_node=8 --nnodes=2 --rdzv_backend c10d --local-ranks-filter 0 \
    -m torchtitan.train --job.config_file ${CONFIG} \
    --parallelism.tensor_parallel_degree=2 \
    --training.local_batch_size 2 \
    --training.global_batch_size 64 \
    --activation_checkpoint.mode full \
    --training.compile true
