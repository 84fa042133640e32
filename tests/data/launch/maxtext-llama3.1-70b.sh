#!/bin/bash
# Llama 3.1 70B on four slices of 64 chips: copies over slices, shards within one.
export LIBTPU_INIT_ARGS="--xla_tpu_enable_async_collective_fusion=true"
python3 -m MaxText.train MaxText/configs/base.yml model_name=llama3.1-70b run_name=llama3.1-70b \
  base_output_directory=gs://bucket dataset_type=synthetic per_device_batch_size=2 max_target_length=8192 \
  dcn_data_parallelism=4 ici_fsdp_parallelism=64 remat_policy=full gradient_accumulation_steps=2 \
  tokenizer_path=assets/tokenizer.llama3 use_iota_embed=true profiler=xplane steps=20
