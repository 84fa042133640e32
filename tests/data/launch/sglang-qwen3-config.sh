cat > serve.yaml <<'YAML'
tensor-parallel-size: 8
expert-parallel-size: 4
max-running-requests: 200
enable-metrics: true
YAML
sglang serve --model-path Qwen/Qwen3-235B-A22B --config serve.yaml --moe-runner-backend triton --enable-single-batch-overlap
