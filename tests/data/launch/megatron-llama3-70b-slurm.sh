#!/bin/bash
#SBATCH --job-name=llama3-70b
#SBATCH --nodes=8
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8

TP=4
CP=2
PP=4

options=" \
    --tensor-model-parallel-size ${TP} \
    --context-parallel-size ${CP} \
    --pipeline-model-parallel-size ${PP} \
    --num-virtual-stages-per-pipeline-rank 4 \
    --sequence-parallel \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --tp-comm-overlap \
    --num-layers 80 \
    --hidden-size 8192 \
    --ffn-hidden-size 28672 \
    --num-attention-heads 64 \
    --group-query-attention \
    --num-query-groups 8 \
    --seq-length 8192 \
    --max-position-embeddings 8192 \
    --use-rotary-position-embeddings \
    --normalization RMSNorm \
    --swiglu \
    --disable-bias-linear \
    --untie-embeddings-and-output-weights \
    --attention-dropout 0.0 \
    --hidden-dropout 0.0 \
    --micro-batch-size 1 \
    --global-batch-size 128 \
    --vocab-size 128256 \
    --tokenizer-type NullTokenizer \
    --bf16 \
    --fp8-format hybrid \
    --fp8-amax-history-len 1024 \
    --fp8-amax-compute-algo max \
    --cuda-graph-impl local \
    --train-samples 1000000 "

run_cmd="python -u pretrain_gpt.py ${options}"

srun -l --output=log.txt python -u pretrain_gpt.py ${options}
