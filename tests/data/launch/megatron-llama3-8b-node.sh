#!/bin/bash
# One node; stages at the ends are smaller, and values follow an equals sign.
TP_SIZE=${TP_SIZE:-2}
PP_SIZE=${PP_SIZE:-4}
if [ -z "$DEBUG" ]; then
  echo "a normal run"
fi
ARGS="--tensor-model-parallel-size=$TP_SIZE --pipeline-model-parallel-size=$PP_SIZE"
ARGS="$ARGS --decoder-first-pipeline-num-layers=7 --decoder-last-pipeline-num-layers=7"
python -m torch.distributed.run --nproc_per_node=8 pretrain_gpt.py $ARGS \
  --num-layers=32 --hidden-size=4096 --ffn-hidden-size=14336 --num-attention-heads=32 \
  --group-query-attention --num-query-groups=8 --seq-length=8192 --max-position-embeddings=8192 \
  --position-embedding-type=rope --normalization=RMSNorm --swiglu --disable-bias-linear \
  --untie-embeddings-and-output-weights --attention-dropout=0 --hidden-dropout=0 --vocab-size=128256 \
  --micro-batch-size=2 --global-batch-size=64 --bf16 --grad-reduce-in-bf16 --use-distributed-optimizer --overlap-grad-reduce \
  --recompute-granularity=full --recompute-method=uniform --recompute-num-layers=1 --my-own-flag=3
