#!/bin/bash
# Llama 3.1 405B sharded over slices and within them, with tensor ranks; the host keeps the inputs of layers.
python3 MaxText/train.py MaxText/configs/base.yml model_name=llama3.1-405b dcn_data_parallelism=1 dcn_fsdp_parallelism=4 \
  ici_fsdp_parallelism=16 ici_tensor_sequence_parallelism=4 per_device_batch_size=1 max_target_length=8192 \
  remat_policy=custom decoder_layer_input=offload optimizer_memory_host_offload=true reuse_example_batch=1 steps=20
