#!/usr/bin/env bash
# crossflow: system: dgx-h100
# crossflow: workload.sequence: 2048
# crossflow: workload.model: llama2-13b
cat > mics.json <<'JSON'
{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_accumulation_steps": 16,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3, "mics_shard_size": 8, "mics_hierarchical_params_gather": true}
}
JSON
deepspeed --num_nodes=4 --num_gpus=8 train.py --deepspeed_config mics.json --gradient_checkpointing
