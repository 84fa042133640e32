#!/bin/bash
# DeepSeek-V3 with experts over a slice; queries, keys, values and the output of attention are kept.
python3 -m MaxText.train MaxText/configs/base.yml model_name=deepseek3-671b per_device_batch_size=4 max_target_length=4096 \
  dcn_data_parallelism=1 dcn_fsdp_parallelism=4 ici_fsdp_parallelism=1 ici_expert_parallelism=64 remat_policy=custom context=device \
  query_proj=device key_proj=device value_proj=device mtp_num_layers=1 ici_fsdp_transpose_parallelism=1 steps=10
