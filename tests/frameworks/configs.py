"""The file of each preset whose own one is at hand, from which engines that are asked make their configuration."""

from pathlib import Path

FILES = Path(__file__).parents[1] / "data" / "huggingface"
CONFIGS = {
    "bloom-176b": "bloom-176b", "deepseek-v3": "deepseek-v3", "gemma3-27b": "gemma-3-27b", "gpt-oss-120b": "gpt-oss-120b",
    "kimi-k2": "kimi-k2", "llama2-7b": "llama-2-7b", "llama3.1-405b": "llama-3.1-405b", "llama4-scout": "llama-4-scout",
    "mistral-7b": "mistral-7b", "mixtral-8x7b": "mixtral-8x7b", "nemotron-h-8b": "nemotron-h-8b", "qwen3-30b-a3b": "qwen3-30b-a3b",
}  # fmt: skip
