#!/bin/bash
# Fine-tuning with the Trainer of transformers.
MODEL=meta-llama/Meta-Llama-3-8B
deepspeed --num_nodes 1 --num_gpus 8 --master_port 29501 finetune.py \
    --model_name_or_path ${MODEL} \
    --data_path data.json \
    --output_dir out \
    --bf16 True \
    --num_train_epochs 3 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8 \
    --evaluation_strategy no \
    --save_strategy steps \
    --learning_rate 2e-5 \
    --warmup_ratio 0.03 \
    --lr_scheduler_type cosine \
    --model_max_length 4096 \
    --gradient_checkpointing True \
    --deepspeed deepspeed-zero2-auto.json
