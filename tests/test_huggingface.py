# ruff: noqa: E501  (exact sentences and tables of cases)
"""config.json of published models: exact parameters from the file alone, what became of each field, and wrong files told exactly."""

import json
from pathlib import Path

import pytest

import crossflow
from crossflow.base import files
from crossflow.base.errors import SpecError
from crossflow.edges.cli import show
from crossflow.workload.config_keys import _alike
from crossflow.workload.conventions import families
from crossflow.workload.huggingface import family_of, huggingface_document
from crossflow.workload.spec import TransformerSpec

CONFIGS = {path.stem: path for path in sorted((Path(__file__).parent / "data" / "huggingface").glob("*.json"))}

# Parameters as the transformers library counts them, which leaves out layers that predict further tokens.
COUNTED = {
    "bert-base-uncased": 109_514_298, "bloom-176b": 176_247_271_424, "command-r": 34_980_831_232, "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200, "falcon-7b": 6_921_720_704, "flan-t5-xl": 2_849_757_184,
    "gemma-2-9b": 9_241_705_984, "gemma-3-1b": 999_885_952, "gemma-3-27b": 27_009_346_304, "gemma-7b": 8_537_680_896, "gpt-j-6b": 6_050_882_784, "gpt-neox-20b": 20_554_567_680, "gpt2": 124_439_808,
    "gpt-oss-20b": 20_914_757_184, "gpt-oss-120b": 116_829_156_672,
    "llama-2-7b": 6_738_415_616, "llama-3.1-405b": 405_853_388_800, "llama-4-maverick": 400_711_848_960,
    "llama-4-scout": 107_769_861_120, "llava-of-llama": 6_738_415_616, "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704, "mpt-7b": 6_649_286_656, "olmo-7b": 6_888_095_744, "opt-1.3b": 1_315_758_080, "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552, "qwen1.5-moe-a2.7b": 14_315_784_192, "qwen2-7b": 7_615_616_512, "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-8b": 8_190_735_360, "roberta-base": 124_697_433, "starcoder2-3b": 3_030_371_328, "t5-large": 737_668_096,
    "vit-large-patch16-224": 304_326_632,
    "diffllama": 1_204_885_504, "ernie-4.5-0.3b": 360_748_032, "glm-4-9b": 9_399_951_360, "glm-4-9b-0414": 9_400_279_040, "granite-3.1-3b-a800m": 3_298_793_472,
    "granite-3.1-8b": 8_170_848_256, "internlm2-7b": 7_737_708_544, "internlm3-8b": 8_804_241_408, "olmo2-7b": 7_298_617_344,
    "phi-3.5-moe": 41_873_153_344, "qwen2-vl-7b": 7_615_616_512, "qwen2.5-vl-7b": 7_615_616_512, "qwen3-vl-30b-a3b": 30_532_122_624,
    "qwen3-vl-8b": 8_190_735_360, "seed-oss-36b": 36_151_104_512, "stablelm-3b-4e1t": 2_795_443_200,
    # by hand: embedding and head, latent attention with two norms in every layer, dense layers, routed and shared experts with a router
    "kimi-k2": 2 * 163840 * 7168 + 7168 + 61 * (101_124_096 + 2 * 7168) + 3 * 7168 * 18432 + 60 * (385 * 3 * 7168 * 2048 + 384 * 7169),
    # the same as deepseek-v3, and in every layer queries, a key with its norm and weights of an indexer
    "deepseek-v3.2": 671_026_419_200 + 61 * (1536 * 64 * 128 + 7168 * 128 + 7168 * 64 + 2 * 128),
    # by hand, as kimi-k2; of 78 layers 21 have an indexer
    "glm-5.2": 2 * 154880 * 6144 + 6144 + 78 * (6144 * 2048 + 2048 + 2048 * 64 * 256 + 6144 * 576 + 512 + 512 * 64 * 448 + 64 * 256 * 6144 + 2 * 6144)
    + 21 * (2048 * 32 * 128 + 6144 * 160 + 256) + 3 * 3 * 6144 * 12288 + 75 * (257 * 3 * 6144 * 2048 + 256 * 6145),
    # whole files, without layers that predict further tokens
    "glm-4.5": 358_337_791_296 - 3_988_069_792 - 2 * 151552 * 5120, "glm-4.5-air": 110_468_824_832 - 2_375_059_584 - 2 * 151552 * 4096,
    # as published by their authors
    "codestral-mamba-7b": 7_285_403_648, "falcon-h1-0.5b": 521_411_104, "falcon-mamba-7b": 7_272_665_088, "jamba-v0.1": 51_570_323_328,
    "mamba-2.8b": 2_768_345_600,
    # by hand: Mamba-2 mixers (projections in and out, convolution, numbers of heads, norms), attention, MLPs or experts, tables
    "nemotron-h-8b": 24 * (4096 * 18560 + 10240 * 5 + 3 * 128 + 8192 * 4097 + 4096) + 24 * (2 * 4096 * 21504 + 4096)
    + 4 * (4096 * 48 * 128 + 4096 * 4097) + 2 * 131072 * 4096 + 4096,
    "nemotron-3-nano-30b-a3b": 23 * (2688 * 10304 + 6144 * 5 + 3 * 64 + 4096 * 2689 + 2688) + 6 * (2688 * 36 * 128 + 4096 * 2688 + 2688)
    + 23 * (128 * 2 * 2688 * 1856 + 2 * 2688 * 3712 + 128 * 2689 + 2688) + 2 * 131072 * 2688 + 2688,
    "bamba-9b": 29 * (4096 * 16768 + 8448 * 5 + 3 * 128 + 8192 * 4097) + 3 * (4096 * 48 * 128 + 4096**2)
    + 32 * (3 * 4096 * 14336 + 2 * 4096) + 2 * 128256 * 4096 + 4096,
    "granite-4.0-h-small": 36 * (4096 * 16768 + 8448 * 5 + 3 * 128 + 8192 * 4097) + 4 * (4096 * 48 * 128 + 4096**2)
    + 40 * (72 * 3 * 4096 * 768 + 3 * 4096 * 1536 + 72 * 4096 + 2 * 4096) + 100352 * 4096 + 4096,
    "granite-4.0-h-micro": 36 * (2048 * 8512 + 4352 * 5 + 3 * 64 + 4096 * 2049) + 4 * (2048 * 48 * 64 + 2048**2)
    + 40 * (3 * 2048 * 8192 + 2 * 2048) + 100352 * 2048 + 2048,
    # gated delta rule: queries, keys, values, gate, two numbers of each head, convolution, a norm of one head
    "qwen3-next-80b-a3b": 36 * (2048 * 12352 + 8192 * 4 + 2 * 32 + 128 + 4096 * 2048) + 12 * (2048 * 36 * 256 + 4096 * 2048 + 2 * 256)
    + 48 * (513 * 3 * 2048 * 512 + 513 * 2048 + 2 * 2048) + 2 * 151936 * 2048 + 2048,
    "qwen3.5-35b-a3b": 30 * (2048 * 12352 + 8192 * 4 + 2 * 32 + 128 + 4096 * 2048) + 10 * (2048 * 36 * 256 + 4096 * 2048 + 2 * 256)
    + 40 * (257 * 3 * 2048 * 512 + 257 * 2048 + 2 * 2048) + 2 * 248320 * 2048 + 2048,
    "qwen3.5-27b": 48 * (5120 * (2 * 2048 + 2 * 6144 + 2 * 48) + 10240 * 4 + 2 * 48 + 128 + 6144 * 5120) + 16 * (5120 * 56 * 256 + 6144 * 5120 + 2 * 256)
    + 64 * (3 * 5120 * 17408 + 2 * 5120) + 2 * 248320 * 5120 + 5120,
    # experts on vectors of 1024 elements, to which and from which two products project each token
    "nemotron-3-super-120b-a12b": 40 * (4096 * 18560 + 10240 * 5 + 3 * 128 + 8192 * 4097 + 4096) + 8 * (4096 * 36 * 128 + 4096 * 4097)
    + 40 * (512 * 2 * 1024 * 2688 + 2 * 4096 * 5376 + 2 * 4096 * 1024 + 512 * 4097 + 4096) + 2 * 131072 * 4096 + 4096,
    # by hand: attention with norms over all heads, experts with a balancing bias each; attention whose queries, keys and values have biases
    "minimax-m2.7": 62 * (3072 * 64 * 128 + 48 * 128 * 3072 + 56 * 128 + 2 * 3072 + 256 * (3 * 3072 * 1536 + 3073)) + 2 * 200064 * 3072 + 3072,
    "mimo-7b": 36 * (4096 * 48 * 128 + 48 * 128 + 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 151680 * 4096 + 4096,
    # by hand: local layers with keys and values of 16 heads of 256, global ones with one product for both, of 4 heads of 512
    "gemma-4-31b": 50 * (2 * 5376 * 32 * 256 + 2 * 5376 * 16 * 256 + 2 * 256) + 10 * (2 * 5376 * 32 * 512 + 5376 * 4 * 512 + 2 * 512)
    + 60 * (3 * 5376 * 21504 + 4 * 5376) + 262144 * 5376 + 5376,
    # queries and keys of 192, values of 128; 9 global layers with 4 heads of keys, 39 local ones with 8 and sinks; one dense layer
    "mimo-v2-flash": 48 * (4096 * 64 * 192 + 64 * 128 * 4096 + 2 * 4096) + (9 * 4 + 39 * 8) * 4096 * 320 + 39 * 64
    + 3 * 4096 * 16384 + 47 * 256 * (3 * 4096 * 2048 + 4097) + 2 * 152576 * 4096 + 4096,
    # 49 layers with attention, MLPs of six widths
    "nemotron-super-49b": 49 * (2 * 8192**2 + 2 * 8192 * 1024 + 8192)
    + 80 * 8192 + 3 * 8192 * (49 * 28672 + 17920 + 6 * 14336 + 10 * 7168 + 8 * 5632 + 6 * 2816) + 2 * 128256 * 8192 + 8192,
    # by hand, of files written from memory (tests/data/huggingface/README.md)
    "smollm3-3b": 36 * (2048 * 24 * 128 + 2048**2 + 3 * 2048 * 11008 + 2 * 2048) + 128256 * 2048 + 2048,
    "exaone-4.0-32b": 64 * (5120 * 56 * 128 + 5120**2 + 2 * 128 + 3 * 5120 * 27392 + 2 * 5120) + 2 * 102400 * 5120 + 5120,
    "dots.llm1": 62 * (4 * 4096**2 + 2 * 128 + 2 * 4096) + 3 * 4096 * 10944 + 61 * (130 * 3 * 4096 * 1408 + 128 * 4097) + 2 * 152064 * 4096 + 4096,
    "ernie-4.5-21b-a3b": 28 * (2560 * 28 * 128 + 2560**2 + 2 * 2560) + 3 * 2560 * 12288
    + 27 * (66 * 3 * 2560 * 1536 + 64 * 2561) + 103424 * 2560 + 2560,
    "hunyuan-7b": 32 * (4096 * 48 * 128 + 4096**2 + 2 * 128 + 3 * 4096 * 14336 + 2 * 4096) + 128256 * 4096 + 4096,
    "ling-lite": 28 * (2048 * 24 * 128 + 2048**2 + 66 * 3 * 2048 * 1408 + 64 * 2048 + 2 * 2048) + 2 * 126464 * 2048 + 2048,
    "command-r7b": 32 * (4096 * 48 * 128 + 4096**2 + 3 * 4096 * 14336 + 4096) + 256000 * 4096 + 4096,
    "olmo-3-7b": 32 * (4 * 4096**2 + 2 * 4096 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 100278 * 4096 + 4096,
    "olmoe-1b-7b": 16 * (4 * 2048**2 + 2 * 2048 + 64 * 3 * 2048 * 1024 + 64 * 2048 + 2 * 2048) + 2 * 50304 * 2048 + 2048,
    "afm-4.5b": 36 * (2560 * 28 * 128 + 2560**2 + 2 * 2560 * 18432 + 2 * 2560) + 2 * 128004 * 2560 + 2560,
    # by hand: Kimi delta attention (queries, keys, values, gate, decays of a latent of 128, steps, convolution, output), latent attention
    # with a gate, experts on latents of 3584, a query and a norm of each part for attention residuals
    "kimi-k3": 69 * (5 * 7168 * 12288 + 128 * (7168 + 12288) + 7168 * 96 + 3 * 12288 * 4 + 96 * 129 + 128)
    + 24 * (7168 * 1536 + 1536 * 96 * 192 + 7168 * 576 + 512 * 96 * 256 + 2 * 7168 * 12288 + 1536 + 512) + 93 * 6 * 7168
    + 3 * 7168 * 33792 + 92 * (896 * (3 * 3584 * 3072 + 7169) + 3 * 7168 * 6144 + 2 * 7168 * 3584) + 2 * 163840 * 7168 + 7168,
    # 12 layers of 64 heads, 33 local ones of 96, a number of each head that weighs its output; experts from the fourth layer
    "step-3.5-flash": (12 * 64 + 33 * 96) * (2 * 4096 * 128 + 4096) + 45 * (2 * 4096 * 1024 + 2 * 128 + 2 * 4096) + 3 * 3 * 4096 * 11264
    + 42 * (289 * 3 * 4096 * 1280 + 288 * 4097) + 2 * 128896 * 4096 + 4096,
    # by hand: queries and outputs, 8 key and value heads of 64, MLP, two norms; a tied table and the last norm
    # by hand: compressed attention of DeepSeek-V4. Queries of a latent, one vector for keys and values, outputs of 16 (8) groups, sinks; in 31
    # (20) layers entries of 128 tokens, in 30 (21) of 4 tokens with an indexer, in 2 of Flash none; experts in all layers, streams
    "deepseek-v4-pro": 61 * (7168 * 1536 + 1536 * 65536 + 7168 * 512 + 4096 * 16384 + 16384 * 7168 + 1536 + 512 + 128 + 2 * 7168)
    + 31 * (2 * 7168 * 512 + 129 * 512) + 30 * (4 * 7168 * (512 + 128) + 9 * (512 + 128) + 1536 * 64 * 128 + 7168 * 64)
    + 61 * (385 * 3 * 7168 * 3072 + 384 * 7169 + 2 * (24 * 4 * 7168 + 27)) + 4 * 4 * 7168 + 5 + 2 * 129280 * 7168 + 7168,
    "deepseek-v4-flash-nvfp4": 43 * (4096 * 1024 + 1024 * 32768 + 4096 * 512 + 4096 * 8192 + 8192 * 4096 + 1024 + 512 + 64 + 2 * 4096)
    + 20 * (2 * 4096 * 512 + 129 * 512) + 21 * (4 * 4096 * (512 + 128) + 9 * (512 + 128) + 1024 * 64 * 128 + 4096 * 64)
    + 43 * (257 * 3 * 4096 * 2048 + 256 * 4097 + 2 * (24 * 4 * 4096 + 27)) + 4 * 4 * 4096 + 5 + 2 * 129280 * 4096 + 4096,
    # 57 layers with an indexer of 4 heads and one key of 128, and with experts
    "minimax-m3": 60 * (6144 * 72 * 128 + 8192 * 6144 + 2 * 128 + 2 * 6144) + 57 * (6144 * 5 * 128 + 2 * 128 + 129 * 3 * 6144 * 3072 + 128 * 6145)
    + 3 * 3 * 6144 * 12288 + 2 * 200064 * 6144 + 6144,
    # Kimi delta attention with decays and gates of full rank in 35 layers, latent attention with a gate of each head in 7
    "ling-3.0-flash": 35 * (6 * 2560 * 4096 + 2560 * 32 + 3 * 4096 * 4 + 32 * 129 + 128) + 42 * 2 * 2560
    + 7 * (2560 * 32 * 192 + 2560 * 576 + 512 + 512 * 32 * 256 + 2560 * 32 + 4096 * 2560)
    + 2 * 3 * 2560 * 6144 + 40 * (513 * 3 * 2560 * 768 + 512 * 2561) + 2 * 157184 * 2560 + 2560,
    # lightning attention with a gate and a norm in 70 layers, attention in 10
    "minimax-text-01": 70 * (5 * 6144 * 8192 + 8192) + 10 * (6144 * 80 * 128 + 8192 * 6144)
    + 80 * (32 * 3 * 6144 * 9216 + 32 * 6144 + 2 * 6144) + 2 * 200064 * 6144 + 6144,
    # gated short convolutions of 3 tokens in 10 (18) layers, attention in 6
    "lfm2-1.2b": 10 * (4 * 2048**2 + 3 * 2048) + 6 * (2048 * 48 * 64 + 2048**2 + 2 * 64) + 16 * (3 * 2048 * 8192 + 2 * 2048) + 65536 * 2048 + 2048,
    "lfm2-8b-a1b": 18 * (4 * 2048**2 + 3 * 2048) + 6 * (2048 * 48 * 64 + 2048**2 + 2 * 64) + 24 * 2 * 2048
    + 2 * 3 * 2048 * 7168 + 22 * (32 * 3 * 2048 * 1792 + 32 * 2049) + 65536 * 2048 + 2048,
    # gates as wide as queries, four norms of a layer
    "trinity-mini": 32 * (2048 * (64 + 8) * 128 + 4096 * 2048 + 2 * 128 + 4 * 2048) + 2 * 3 * 2048 * 6144
    + 30 * (129 * 3 * 2048 * 1024 + 128 * 2049) + 2 * 200192 * 2048 + 2048,
    "k-exaone-236b": 48 * (6144 * 80 * 128 + 8192 * 6144 + 2 * 128 + 2 * 6144) + 3 * 6144 * 18432
    + 47 * (129 * 3 * 6144 * 2048 + 128 * 6145) + 2 * 153600 * 6144 + 6144,
    # lightning attention in 16 layers, attention in 4
    "ring-mini-linear": 16 * (5 * 2048**2 + 2048) + 4 * (2048 * 24 * 128 + 2048**2 + 2 * 128) + 20 * 2 * 2048 + 3 * 2048 * 5120
    + 19 * (257 * 3 * 2048 * 512 + 256 * 2049) + 2 * 157184 * 2048 + 2048,
    # by hand: 56 latent attentions and MLPs, 28 of them with 512 experts beside
    "longcat-flash": 56 * (6144 * 1536 + 1536 * 64 * 192 + 6144 * 576 + 512 * 64 * 256 + 64 * 128 * 6144 + 1536 + 512 + 3 * 6144 * 12288 + 2 * 6144)
    + 28 * (512 * 3 * 6144 * 2048 + 512 * 6145) + 2 * 131072 * 6144 + 6144,
    # queries and keys of 2,048, values, gate and output, two gates of each of 8 heads with biases, a norm of 4,096
    "xlstm-7b": 32 * (2 * 4096 * 2048 + 3 * 4096**2 + 16 * 4097 + 4096 + 3 * 4096 * 10944 + 2 * 4096) + 2 * 50304 * 4096 + 4096,
    "cohere2-moe": 78_036_733_952, "openelm-270m": 271_527_168, "ltx-video": 1_923_385_472, "allegro": 2_771_907_856, "cogview4-6b": 6_367_159_360,
    "skyreels-v2-t2v": 2_191_878_208, "longcat-image": 11_877_803_072,
    "starcoder-15b": 15_517_456_384, "chatglm3-6b": 6_243_584_000, "dbrx-132b": 131_596_523_520, "bart-large": 406_291_456,
    "mamba2-ssm-2.7b": 2_702_599_680, "hunyuan-a13b": 80_393_183_232,
    "grok-1": 64 * (2 * 6144**2 + 2 * 6144 * 1024 + 8 * 3 * 6144 * 32768 + 8 * 6144 + 4 * 6144) + 131072 * 6144 + 6144,
    "grok-2": 64 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 32768 + 8 * 3 * 8192 * 16384 + 8 * 8192 + 4 * 8192) + 2 * 131072 * 8192 + 8192,
    # every second layer attends to the keys and values of the one before
    "hunyuan-large": 32 * (2 * 6400 * 8 * 80 + 80) + 64 * (2 * 6400**2 + 80 + 17 * 3 * 6400 * 18304 + 16 * 6400 + 2 * 6400) + 129024 * 6400 + 6400,
    "phi-4-multimodal": 3_836_021_760, "glm-4.1v-9b": 9_400_279_040, "qwen2.5-omni-7b": 7_615_616_512,
    "glm-4.5v": 46 * (4096 * 112 * 128 + 112 * 128 + 96 * 128 * 4096 + 2 * 4096) + 3 * 4096 * 10944
    + 45 * (129 * 3 * 4096 * 1408 + 128 * 4097) + 2 * 151552 * 4096 + 4096,
    "arctic-480b": 35 * (2 * 7168**2 + 2 * 7168 * 1024 + 128 * 3 * 7168 * 4864 + 128 * 7168 + 3 * 7168**2 + 3 * 7168) + 2 * 32000 * 7168 + 7168,
    "minicpm3-4b": 62 * (2560 * 768 + 768 + 768 * 40 * 96 + 2560 * 288 + 256 + 256 * 40 * 128 + 40 * 64 * 2560 + 3 * 2560 * 6400 + 2 * 2560) + 73448 * 2560 + 2560,
    # 20 layers make keys and values; without alternating updates and low-rank residuals
    "gemma-3n-e4b": 35 * (2 * 2048**2 + 256 + 3 * 2048 * 16384 + 4 * 2048 + 2 * 2048 * 256 + 2048) + 20 * (2 * 2048 * 2 * 256 + 256)
    + 262400 * 2048 + 262144 * 35 * 256 + 2048 * 35 * 256 + 256 + 2048,
    "ernie-4.5-vl-28b-a3b": 28 * (2560 * 28 * 128 + 2560**2 + 2 * 2560) + 3 * 2560 * 12288
    + 27 * (66 * 3 * 2560 * 1536 + 64 * 2561) + 103424 * 2560 + 2560,
    "qwen3-omni-30b-a3b": 30_532_122_624 + 2 * (152064 - 151936) * 2048,
    "distilbert-base": 66_985_530, "modernbert-large": 395_881_664 + 2 * 1024, "nomic-embed-v1.5": 136_731_648,
    "whisper-large-v3": 1_543_490_560 + 3 * 32 * 1280, # biases of keys, which files leave out
    "dinov2-large": 304_368_640 - 2 * 24 * 1024 - 1024, # without scales of layers and a vector for masks
    "siglip-so400m-text": 27 * (4 * 1152**2 + 2 * 1152 * 4304 + 4304 + 9 * 1152) + (32000 + 64 + 2) * 1152,
    "siglip-so400m-vision": 27 * (4 * 1152**2 + 2 * 1152 * 4304 + 4304 + 9 * 1152) + (588 + 1 + 729 + 2) * 1152,
    "clip-vit-l-text": 123_060_480, "clip-vit-l-vision": 303_179_776 + 1024,
    # diffusion transformers as their files of weights have them, or by hand: attention, MLP, shifts, scales and gates, ends
    "dit-xl-2-256": 28 * (18 * 1152**2 + 15 * 1152) + 3 * (1152**2 + 1152) + 256 * 1152 + 1152 + 1001 * 1152 + 17 * 1152 + 32 * 1153,
    "pixart-alpha-xl-2-1024": 28 * (16 * 1152**2 + 19 * 1152) + 7 * (1152**2 + 1152) + 1152**2 + 256 * 1152 + 4096 * 1152 + 3 * 1152 + 17 * 1152 + 32 * 1153 + 2 * 1152,
    "sd3-medium": 2_028_328_000, "sd3.5-large": 8_056_627_520, "flux.1-dev": 11_901_408_320,
    "qwen-image": 20_430_401_088 - 3584, # without a norm of the text encoder's vectors
    "wan2.1-t2v-14b": 14_288_491_584, "wan2.1-t2v-1.3b": 1_418_996_800,
    # time steps of 256 sines and cosines in the place of 3072; without biases of norms of heads and two norms before the last product
    "cogvideox-5b": 42 * (12 * 3072**2 + 9 * 3072 + 4 * 3072 + 2 * 64 + 12 * 513 * 3072) + 257 * 512 + 512 * 513 + 2 * 513 * 3072 + 4097 * 3072 + 65 * 3072 + 64 * 3073,
    # 20 layers of two streams, 40 of one, two that refine the text
    "hunyuanvideo": 20 * (36 * 3072**2 + 30 * 3072 + 4 * 128) + 40 * (15 * 3072**2 + 11 * 3072 + 2 * 128) + 2 * (14 * 3072**2 + 11 * 3072)
    + 3 * (3072**2 + 3072) + (256 + 256 + 768 + 3) * 3072 + 4097 * 3072 + 65 * 3072 + 2 * 3072**2 + 2 * 3072 + 64 * 3073
    + (257 + 4097) * 3072 + 2 * (3072**2 + 3072), # gates of the text, of the time step and its mean
    # classes of diffusers, without norms of the text and of layers that refine it; Flux.2 and ERNIE-Image have fewer biases
    "bria-3": 11_879_375_936, "ovis-image": 7_370_449_728 - 2048, "hunyuanimage-2.1": 17_411_235_904 - 8 * 3584,
    "flux.2-dev": 32_223_281_152 + 23 * 6144 + 128, "ernie-image": 2_821_119_104 + 3072,
    # a time step of 256 sines and cosines and products of 512 or 256 in the place of 4608 or 1024, and further vectors
    "ideogram-4": 9_279_288_448 - (2 * 4608**2 + 2 * 4608 + 512 * 4609) + (257 + 513) * 512 - 53248 - 2 * 4608,
    "z-image": 6_154_908_736 - (257 * 1024 + 1025 * 256) + 2 * 257 * 256 - 2560 - 2 * 3840 - 2 * (4 * 3840 + 2 * 128),
    # 8 of 40 layers attend to an image, with norms of a head's query and key and two gates; without 8 rows of special words
    "llama-3.2-11b-vision": 40 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096) + 8 * (2 * 128 + 2) + 2 * 128256 * 4096 + 4096,
    # gated recurrences of 2560 channels with products of 10 heads in 18 layers, attention in 8
    "recurrentgemma-2b": 18 * (3 * 2560**2 + 3 * 2560 + 5 * 2560 + 2 * 2560 * 257 + 2560) + 8 * (2 * 2560**2 + 2 * 2560 * 256 + 2560)
    + 26 * (3 * 2560 * 7680 + 2 * 7680 + 2560 + 2 * 2560) + 256000 * 2560 + 2560,
    # RWKV: time mixing, channel mixing, norms (two of each layer, one before the first and one after the last), two tables
    "rwkv5-7b": 32 * (6 * 4096**2 + 2 * 4096 * 14336 + 14 * 4096) + 2 * 65536 * 4096 + 4 * 4096,
    **{f"rwkv6-{name}": n * (6 * h**2 + 7 * h**2 + 2 * h * (5 * mix + decay) + 16 * h) + 2 * 65536 * h + 4 * h
       for name, h, n, mix, decay in (("1.6b", 2048, 24, 32, 64), ("3b", 2560, 32, 32, 64), ("7b", 4096, 32, 64, 128), ("14b", 4096, 61, 64, 128))},
    **{f"rwkv7-{name}": n * (12 * h**2 + 2 * h * ranks + 19 * h) + 2 * 65536 * h + 4 * h
       for name, h, n, ranks in (("0.4b", 1024, 24, 288), ("1.5b", 2048, 24, 512), ("2.9b", 2560, 32, 576))},
    "falcon-40b": 60 * (2 * 8192**2 + 2 * 8192 * 8 * 64 + 8 * 8192**2 + 4 * 8192) + 65024 * 8192 + 2 * 8192,
    # by hand: a tied table that the file does not name; a gate beside relu2, a norm of outputs of attention and MLP left out
    "minicpm-2b": 40 * (4 * 2304**2 + 3 * 2304 * 5760 + 2 * 2304) + 122753 * 2304 + 2304,
    "bitnet-2b": 30 * (2 * 2560**2 + 2 * 2560 * 640 + 3 * 2560 * 6912 + 2 * 2560) + 128256 * 2560 + 2560,
    # half of intermediate_size, and biases of queries, keys and values
    "qwen-7b": 32 * (4 * 4096**2 + 3 * 4096 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 151936 * 4096 + 4096,
    "eurobert-610m": 755_625_600 + 1152**2 + 2 * 1152 + 128256, # the head of transformers has a table only; ours a product, a norm and biases too
    "dream-7b": 28 * (2 * 3584**2 + 3584 + 2 * (3584 * 512 + 512) + 3 * 3584 * 18944 + 2 * 3584) + 2 * 152064 * 3584 + 3584,
    "llada-8b": 32 * (4 * 4096**2 + 3 * 4096 * 12288 + 2 * 4096) + 2 * 126464 * 4096 + 4096,
    "ling-flash-2.0": 32 * (4096 * (32 + 2 * 4) * 128 + 4096**2 + 2 * 128 + 2 * 4096) + 3 * 4096 * 9216
    + 31 * (257 * 3 * 4096 * 1024 + 256 * 4097) + 2 * 157184 * 4096 + 4096,
    # hybrids with shared blocks, as transformers counts them
    "zamba2-7b": 7_356_749_648, "zamba2-1.2b": 1_215_064_704, "zamba-7b": 7_232_490_496,
    # as transformers 5 writes and counts them, whose biases that choose experts are buffers
    "kimi-linear-48b-transformers-5": 49_133_074_464 + 26 * 256, "glm-4.7-flash-transformers-5": 29_943_390_976 + 46 * 64,
    "qwen3-moe-transformers-5": 15_350_731_776, "ling-3.0-flash-transformers-5": 124_414_191_072 + 40 * 512,
    "jina-embeddings-v3-transformers": 559_616_146, "granite-4.0-micro": 3_402_836_480, "embeddinggemma-300m": 302_863_104,
    "bge-reranker-v2-m3": 567_755_777 - 1025, # without the product of the score
    # by hand: gated MLPs without the bias of their last product, which the published 434,139,136 have; words, two kinds of tokens, a norm
    "gte-large-en-v1.5": 434_139_136 - 24 * 1024,
    "jina-embeddings-v3": 24 * (12 * 1024**2 + 13 * 1024) + (250002 + 1 + 2) * 1024 + 1024**2 + 1024, # with a pooler, as its file has it
    "llama-nemotron-embed-1b": 16 * (2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048) + 128256 * 2048 + 2048,
    "nv-embed-v2": 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096) + 32000 * 4096 + 4096,
    "molmo-7b-d": 7_615_616_512, # that of Qwen2-7B
    # as transformers counts them; the biases that choose experts are buffers there
    "hyperclovax": 6_738_677_760, "biogpt": 346_763_264, "hy-v3": 295_033_528_320 + 79 * 192,
}  # fmt: skip


def config(name, **changes):
    """Fields of one of the files, some changed, those given as ... left out."""
    fields = {**json.loads(CONFIGS[name].read_text()), **changes}
    return {key: value for key, value in fields.items() if value is not ...}


def written(folder, fields):
    path = folder / "config.json"
    path.write_text(fields if isinstance(fields, str) else json.dumps(fields, indent=1))
    return path


def read(path):
    document, uses = huggingface_document(path, examples=True)
    return files.validate(TransformerSpec, document), {use.key: use.became for use in uses}


def problems(path):
    with pytest.raises(SpecError) as caught:
        huggingface_document(path)
    return [(problem.line, problem.path, problem.message) for problem in caught.value.problems]


# ------------------------------------------------------------------------------------------ what is read


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_weights_that_are_stored_in_32_bits_are_computed_with_in_16(tmp_path, key):
    spec, became = read(written(tmp_path, {**config("llama-2-7b", torch_dtype=...), key: "float32"}))
    assert (spec.dtype, became[key]) == ("bf16", "not used: the workload's dtype is that of all numbers")
    assert (
        spec.notes == "config.json stores weights in float32; they are computed with in bf16, as frameworks do (workload.dtype changes it)."
    )


def test_experts_on_a_latent_compute_and_send_less():
    """Products of experts shrink with their vectors, and two projections come to them."""
    spec, _ = read(CONFIGS["nemotron-3-super-120b-a12b"])
    mixture = next(part for layer in spec.transformer().layers for part in layer.parts if part.routing)
    assert (mixture.routed_width, mixture.width) == (1024, 4096)
    per_token = 2 * (22 * 2 * 1024 * 2688 + 2 * 4096 * 5376 + 2 * 4096 * 1024 + 512 * 4096)
    assert spec.transformer().part_flops(mixture, 1) == per_token


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_follow_from_the_file_alone(name):
    spec, _ = read(CONFIGS[name])
    assert spec.transformer().parameters == COUNTED[name]


# As published, in units of the last digit; Qwen3-Next's 3 billion leave out its table and its head.
ACTIVE = [
    ("jamba-v0.1", 12e9, 0.5e9), ("granite-4.0-h-small", 9e9, 0.5e9), ("nemotron-3-nano-30b-a3b", 3.6e9, 0.05e9),
    ("kimi-k3", 104e9 + 163840 * 7168, 0.5e9), # without the table, as arXiv:2607.24653 tells it
    ("qwen3-next-80b-a3b", 3e9 + 2 * 151936 * 2048, 0.5e9),
]  # fmt: skip


@pytest.mark.parametrize(("name", "active", "within"), ACTIVE)
def test_parameters_that_a_token_of_a_hybrid_passes(name, active, within):
    assert read(CONFIGS[name])[0].transformer().active_parameters == pytest.approx(active, abs=within)


WRONG_STATES = [
    ("bamba-9b", {"attn_layer_indices": [9, 40]}, "attn_layer_indices", "expected numbers of layers from 0 to 31, got [9, 40]"),
    ("nemotron-h-8b", {"hybrid_override_pattern": "M-X" * 18}, "hybrid_override_pattern",
     '"X" is not modelled; known: "M", "*", "-", "E", "mamba", "linear_attention", "attention", "full_attention", "recurrent", "mlp", "moe", "conv", "hybrid"'),
    ("nemotron-h-8b", {"hybrid_override_pattern": "M-*"}, "hybrid_override_pattern", "expected an entry for each of 52 layers, got 3"),
    ("jamba-v0.1", {"expert_layer_offset": 0}, "expert_layer_offset", "0 is not modelled where experts.every = 2; known: 1"),
    ("codestral-mamba-7b", {"expand": 4}, "expand", "16384 elements are not those of 128 heads of 64"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "path", "sentence"), WRONG_STATES)
def test_hybrids_that_are_not_modelled_are_told(tmp_path, name, changes, path, sentence):
    assert [found[1:] for found in problems(written(tmp_path, config(name, **changes)))] == [(path, sentence)]


def test_a_service_keeps_states_in_the_type_of_the_file():
    path = CONFIGS["nemotron-3-nano-30b-a3b"]
    assert huggingface_document(path, service=True)[0].data["ssm"]["state_dtype"] == "fp32"
    assert read(path)[0].ssm.state_dtype is None


QUANTISED = [
    ({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}, "fp8_block"),  # DeepSeek-V3, Kimi-K2
    ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, "int4"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}, "int4_32"),
    ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}, "int4_64"),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8"),
    ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}, "mxfp4"),  # gpt-oss
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}}, "int4_32"),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 64}}}}, "int4_64"),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}}}, "int4"),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, "nvfp4"),
]  # fmt: skip


@pytest.mark.parametrize(("quantised", "stored"), QUANTISED)
def test_a_service_keeps_weights_as_the_file_does_and_training_does_not(tmp_path, quantised, stored):
    path = written(tmp_path, config("llama-2-7b", quantization_config=quantised))
    document, uses = huggingface_document(path, service=True)
    assert document.data["weight_dtype"] == stored
    assert {use.key: use.became for use in uses}["quantization_config"].startswith(f'weight_dtype = "{stored}"')
    spec, became = read(path)
    assert spec.weight_dtype is None
    assert became["quantization_config"] == f"not used in training: a service keeps weights in {stored}"


def test_a_method_that_is_not_known_is_told(tmp_path):
    path = written(tmp_path, config("llama-2-7b", quantization_config={"quant_method": "gptq", "bits": 3}))
    assert read(path)[1]["quantization_config"] == "not used: not known to crossflow; give weight_dtype"
    notes = huggingface_document(path, service=True)[0].data["notes"]
    assert notes == "Fields of config.json that are not known are left out: quantization_config (give weight_dtype)."


def test_a_scenario_serves_a_file_in_its_weights_and_trains_it_in_its_own(tmp_path):
    """Layers in one byte, embedding, head and last norm in two; what the scenario says wins."""
    path = str(written(tmp_path, config("llama-2-7b", quantization_config=QUANTISED[1][0])))

    def weights(**workload):
        made = crossflow.from_dict({"system": {"template": "h200", "devices": 1}, "workload": {"model": path, **workload}})
        return float(crossflow.predict(made).score.memory["weights"][0])

    ends = 2 * 32000 * 4096 + 4096
    assert weights(task="decode") == pytest.approx(COUNTED["llama-2-7b"] + ends)
    assert weights(task="decode", weight_dtype="bf16", dtype="bf16") == weights() == pytest.approx(2 * COUNTED["llama-2-7b"])


def test_every_family_is_read_from_a_file():
    assert {family_of(config(name)) for name in CONFIGS} == set(families())


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("llama-2-7b", "llama2-7b"),
        ("mixtral-8x7b", "mixtral-8x7b"),
        ("deepseek-v3", "deepseek-v3"),
        ("bloom-176b", "bloom-176b"),
        ("t5-large", "t5-large"),
        ("mistral-7b", "mistral-7b"),
        ("gemma-3-27b", "gemma3-27b"),
        ("gpt-oss-120b", "gpt-oss-120b"),
        ("llama-4-scout", "llama4-scout"),
        ("deepseek-v3.2", "deepseek-v3.2"),
        ("deepseek-v4-pro", "deepseek-v4-pro"),
        ("deepseek-v4-flash-nvfp4", "deepseek-v4-flash"),
        ("kimi-k3", "kimi-k3"),
        ("glm-5.2", "glm-5.2"),
        ("qwen3.5-27b", "qwen3.5-27b"),
        ("qwen3.5-35b-a3b", "qwen3.5-35b-a3b"),
        ("mimo-v2-flash", "mimo-v2-flash"),
        ("gemma-4-31b", "gemma4-31b"),
    ],
)
def test_a_file_and_a_preset_describe_one_model(name, preset):
    shipped = files.validate(TransformerSpec, files.read_yaml(files.find("templates", preset))).transformer()
    described = read(CONFIGS[name])[0].transformer()
    assert [layer.parts for layer in described.layers] == [layer.parts for layer in shipped.layers]
    assert (described.embedding, described.head, described.tied) == (shipped.embedding, shipped.head, shipped.tied)


@pytest.mark.parametrize(("name", "preset"), [("deepseek-v4-pro", "deepseek-v4-pro"), ("qwen3.5-27b", "qwen3.5-27b")])
def test_a_file_and_a_preset_are_served_in_the_same_types(name, preset):
    def types(model):
        data = {"model": model, "task": "decode", "prompt": 1000, "output": 100, "global_batch": 64, "sequence": 4096}
        spec = crossflow.from_dict({"system": {"template": "dgx-h200", "devices": 8}, "workload": data, "strategy": "tp8"}).workload
        return spec.dtype, spec.weight_dtype, spec.weight_dtypes, spec.wide_layers, spec.ssm and spec.ssm.state_dtype

    assert types(str(CONFIGS[name])) == types(preset)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_field_is_reported_and_known(name):
    uses = huggingface_document(CONFIGS[name], examples=True)[1]
    parts = {"text_config", "thinker_config", "attn_config", "ffn_config", "ssm_cfg", "attention_other_setting", "linear_attn_config"}
    parts |= {"sparse_attention_config"}

    def keys(fields):
        return [f"{key}.{below}" if below else key for key, value in fields.items() for below in (keys(value) if key in parts else [""])]

    assert [use.key for use in uses] == keys(config(name))
    assert not [use.key for use in uses if use.became == "not used: not known to crossflow"]


def test_what_became_of_fields():
    became = read(CONFIGS["deepseek-v3"])[1]
    assert became["first_k_dense_replace"] == "experts.dense_layers = 3"
    assert became["moe_intermediate_size"] == "experts.ffn = 2048, experts.shared = 2048"
    assert became["architectures"] == 'head = "language"'
    assert became["torch_dtype"] == 'dtype = "bf16"'
    assert became["rope_theta"] == "not used: does not change the cost"
    assert became["attention_bias"] == "checked: as it is modelled"
    assert became["num_nextn_predict_layers"] == "mtp_layers = 1"


def test_other_names_nothing_and_the_unknown_are_told_apart(tmp_path):
    became = read(written(tmp_path, config("gpt2", future=1)))[1]
    assert became["n_positions"] == "sequence = 1024, max_positions = 1024"
    assert became["n_ctx"] == "not used: other fields decide"
    assert became["summary_activation"] == "not used: null"
    assert became["future"] == "not used: not known to crossflow"


def test_of_a_nested_file_the_text_part_is_read():
    spec, became = read(CONFIGS["llava-of-llama"])
    assert (spec.dtype, spec.layers) == ("bf16", 32)
    assert became["text_config.hidden_size"] == "hidden = 4096"
    assert became["torch_dtype"] == 'dtype = "bf16"'
    assert became["vision_config"] == "not used: only text_config is read"


@pytest.mark.parametrize(
    ("name", "changes", "key", "value"),
    [
        ("falcon-7b", {"multi_query": False}, "kv_heads", None),
        ("falcon-7b", {"alibi": True}, "positions", "alibi"),
        ("falcon-7b", {"parallel_attn": False}, "norms", 2),
        ("mpt-7b", {"attn_config": {"alibi": False}}, "positions", "learned"),
        ("mpt-7b", {"no_bias": False}, "biases", True),
        ("gpt2", {"n_inner": 1000}, "ffn", 1000),
        ("gpt2", {"resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}, "dropout", False),
        ("gpt2", {"architectures": ["GPT2Model"]}, "head", "none"),
        ("gpt-neox-20b", {"use_parallel_residual": False}, "parallel", False),
        ("bert-base-uncased", {"architectures": ["BertForPreTraining"]}, "pooler", True),
        ("command-r", {"use_qk_norm": True}, "qk_norm", "per-head"),
        ("llama-2-7b", {"attention_bias": True}, "biases", True),
        ("llama-2-7b", {"num_key_value_heads": None}, "kv_heads", None),
        ("roberta-base", {"max_position_embeddings": 130}, "sequence", 128),
        ("opt-1.3b", {"max_position_embeddings": 128}, "max_positions", 130),
        ("t5-large", {"num_decoder_layers": 6}, "layers", 6),
        ("vit-large-patch16-224", {"id2label": {"0": "cat", "1": "dog"}}, "image.classes", 2),
        ("deepseek-v2-lite", {"n_shared_experts": None}, "experts.shared", 0),
        ("glm-4.5", {"use_qk_norm": False}, "qk_norm", None),
        ("glm-4.5", {"attention_bias": False}, "qkv_bias", False),
        ("glm-4.5", {"num_nextn_predict_layers": 0}, "mtp_layers", 0),
        ("phi-3.5-moe", {"lm_head_bias": False}, "head_bias", False),
        ("seed-oss-36b", {"attention_out_bias": True}, "biases", True),
        ("internlm3-8b", {"qkv_bias": True}, "qkv_bias", True),
    ],
)
def test_a_field_changes_what_it_should(tmp_path, name, changes, key, value):
    before, after = read(CONFIGS[name])[0], read(written(tmp_path, config(name, **changes)))[0]
    for part in key.split("."):
        before, after = getattr(before, part), getattr(after, part)
    assert after == value
    assert before != after


@pytest.mark.parametrize(("architecture", "head", "pooler"), [("BertModel", "none", True), ("BertForMaskedLM", "masked", False)])
def test_a_bare_model_of_some_families_ends_with_a_pooler(tmp_path, architecture, head, pooler):
    """modeling_bert.py: `BertModel` has one, `BertForMaskedLM` is made with `add_pooling_layer=False`."""
    found = read(written(tmp_path, config("bert-base-uncased", architectures=[architecture])))[0]
    assert (found.head, found.pooler) == (head, pooler)
    assert not read(written(tmp_path, config("gpt2", architectures=["GPT2Model"])))[0].pooler


def test_layers_of_no_whole_group_attend(tmp_path):
    """Ling linear, modeling_bailing_moe_linear_v2.py: the last of each group of 5, and the two of 22 that are no group."""
    pattern = ["ssm"] * 4 + ["attention"]
    whole, more = (read(written(tmp_path, config("ring-mini-linear", num_hidden_layers=n)))[0].ssm.pattern for n in (20, 22))
    assert [whole[i % len(whole)] for i in range(20)] == pattern * 4
    assert [more[i % len(more)] for i in range(22)] == [*pattern * 4, "attention", "attention"]


def test_griffin_counts_both_branches_of_its_mlp_in_one_width():
    """RecurrentGemma-2B, modeling_recurrent_gemma.py: `intermediate_size // 2`; the state is as wide as all heads together."""
    found = read(CONFIGS["recurrentgemma-2b"])[0]
    assert (found.ffn, found.ssm.head_dim) == (15360 // 2, 2560 // 10)


def test_layers_of_a_search_of_architectures_have_the_parameters_of_their_own():
    """Nemotron-Super-49B layer by layer: queries and outputs, keys and values of a group, three matrices of an MLP, norms."""
    given = json.loads(CONFIGS["nemotron-super-49b"].read_text())
    hidden, heads = given["hidden_size"], given["num_attention_heads"]
    count = 2 * given["vocab_size"] * hidden + hidden
    for block in given["block_configs"]:
        if not block["attention"]["no_op"]:
            count += 2 * hidden**2 + 2 * hidden * (heads // block["attention"]["n_heads_in_group"]) * (hidden // heads) + hidden
        if not block["ffn"]["no_op"]:
            wide = int(2 * block["ffn"]["ffn_mult"] * hidden / 3)
            count += 3 * hidden * (wide + -wide % 256) + hidden
    assert read(CONFIGS["nemotron-super-49b"])[0].transformer().parameters == count


# Whole files hold the embedding and the head once more with each layer that predicts a further token.
@pytest.mark.parametrize(
    ("name", "whole"), [("deepseek-v3", 684_489_845_504), ("glm-4.5", 358_337_791_296), ("glm-4.5-air", 110_468_824_832)]
)
def test_layers_that_predict_further_tokens_are_in_the_files(name, whole):
    spec = read(CONFIGS[name])[0]
    model = spec.transformer()
    assert model.parameters + model.mtp_parameters + 2 * spec.vocabulary * spec.hidden == whole


def test_larger_models_of_a_family_have_their_published_parameters(tmp_path):
    wide = {"hidden_size": 5120, "intermediate_size": 13824, "num_attention_heads": 40, "num_key_value_heads": 40, "num_hidden_layers": 40}
    assert read(written(tmp_path, config("olmo2-7b", **wide)))[0].transformer().parameters == 13_716_198_400
    wide = {**wide, "intermediate_size": 27648, "num_key_value_heads": 8, "num_hidden_layers": 64}
    assert read(written(tmp_path, config("olmo2-7b", **wide)))[0].transformer().parameters == 32_234_279_936


@pytest.mark.parametrize(
    ("name", "changes", "window"),
    [
        ("mistral-7b", {}, "4096 local"),
        ("mistral-7b", {"sliding_window": None}, None),
        ("gemma-2-9b", {}, "4096 local global"),
        ("gemma-3-27b", {}, "1024 local local local local local global"),
        ("gpt-oss-20b", {}, "128 local global"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"] * 24}, None),
        ("gpt-oss-20b", {"layer_types": ["full_attention"] + ["sliding_attention"] * 23}, "128 global" + 23 * " local"),
        ("llama-4-scout", {}, "8192 local local local global chunked, without positions"),
        ("llama-4-maverick", {}, "8192 local local local global chunked, without positions"),
        ("qwen2-7b", {"sliding_window": 512}, None),
        ("qwen2-7b", {"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 26}, "512" + 26 * " global" + 2 * " local"),
    ],
)
def test_which_layers_see_a_window(tmp_path, name, changes, window):
    found = read(written(tmp_path, config(name, **changes)))[0].window
    special = " chunked, without positions" if found and found.chunked and not found.global_rotary else ""
    assert window == (found and " ".join([str(found.size), *found.pattern]) + special)


@pytest.mark.parametrize(("changes", "limit"), [({}, 7.0), ({"swiglu_limit": 10.0}, 10.0), ({"swiglu_limit": None}, None)])
def test_the_limit_of_a_gate(tmp_path, changes, limit):
    assert read(written(tmp_path, config("gpt-oss-20b", **changes)))[0].gate_limit == limit


def test_what_became_of_windows_and_of_images():
    became = read(CONFIGS["llama-4-scout"])[1]
    assert became["text_config.attention_chunk_size"] == "window.size = 8192"
    assert became["text_config.intermediate_size"] == "experts.ffn = 8192, experts.shared = 8192"
    assert became["vision_config"] == "not used: only text_config is read"
    assert read(CONFIGS["gpt-oss-20b"])[1]["layer_types"] == 'window.pattern = ["local", "global"]'


def test_without_an_architecture_a_family_has_its_usual_head(tmp_path):
    heads = {name: read(written(tmp_path, config(name, architectures=...)))[0].head for name in ("gpt2", "bert-base-uncased", "t5-large")}
    assert heads == {"gpt2": "language", "bert-base-uncased": "masked", "t5-large": "language"}


def test_a_scenario_lays_its_own_over_the_file():
    own = files.Document(file="scenario", data={"sequence": 4096, "global_batch": 8, "experts": {"capacity": 1.5}})
    spec = files.validate(TransformerSpec, files.merge(huggingface_document(CONFIGS["mixtral-8x7b"])[0], own))
    assert (spec.sequence, spec.global_batch, spec.layers) == (4096, 8, 32)
    assert (spec.experts.count, spec.experts.capacity) == (8, 1.5)


def test_dimensions_that_do_not_fit_are_told_with_the_line_of_their_field(tmp_path):
    path = written(tmp_path, config("gpt2", n_head=7))
    with pytest.raises(SpecError) as caught:
        read(path)
    line = 1 + [text.strip() for text in path.read_text().splitlines()].index('"n_head": 7,')
    assert str(caught.value) == f"{path}:{line}: heads: hidden = 768 is not a multiple of heads = 7; give head_dim"


# ------------------------------------------------------------------------------------------ notes

LONGEST = "sequence = 131072 is the longest that llama-3.1-405b.json allows; give workload.sequence to change it"
ONE = "global_batch = 1 because llama-3.1-405b.json gives none; give workload.global_batch to change it"
SEES = "Only the language model of llava-of-llama.json is described, not its vision tower."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "own", "notes"),
    [
        ("llama-3.1-405b", {}, [LONGEST, ONE]),
        ("llama-3.1-405b", {"sequence": 8192}, [ONE]),
        ("llama-3.1-405b", {"sequence": 8192, "global_batch": 2}, []),
        ("llama-3.1-405b", {"task": "prefill", "prompt": 100, "global_batch": 1}, []),
        ("llama-2-7b", {"task": "serving", "prompt": 100, "output": 10, "serving": {"arrival_rate": "1 1/s"}}, []),
        ("vit-large-patch16-224", {"global_batch": 8}, []),
        ("llava-of-llama", {"sequence": 1024, "global_batch": 1}, [SEES]),
    ],
)
def test_a_prediction_tells_what_it_takes_from_the_file(name, own, notes):
    given = {"system": {"template": "dgx-h100", "devices": 1}, "workload": {"model": str(CONFIGS[name]), **own}, "strategy": "dp1"}
    assert crossflow.predict(crossflow.from_dict(given)).to_dict().get("notes", []) == notes


def test_the_page_of_a_file_has_its_notes():
    assert show.look_up(str(CONFIGS["llama-3.1-405b"])).notes == f"{LONGEST}\n{ONE}"
    sheet = show.look_up(str(CONFIGS["glm-4.5"]))
    assert sheet.notes.endswith(
        "\nlayers of multi-token prediction run in training only; a service that guesses with them has serving.speculation"
    )
    assert sheet.settings["parameters of mtp_layers"] == 3_988_069_792
    assert isinstance(sheet.settings["active parameters"], int)
    assert "vision tower" in show.look_up(str(CONFIGS["qwen2-vl-7b"])).notes


RATIOS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


@pytest.mark.parametrize(("layers", "ratios"), [(61, None), (4, [0, 4, 0, 128]), (3, [128, 4, 0])])
def test_kinds_of_compressed_layers_are_the_same_in_words_and_in_numbers(tmp_path, layers, ratios):
    """A ratio of each layer, and what newer files call it."""
    ratios = ratios or config("deepseek-v4-pro")["compress_ratios"][:layers]
    numbers = config("deepseek-v4-pro", num_hidden_layers=layers, compress_ratios=ratios, num_nextn_predict_layers=0)
    words = {**numbers, "layer_types": [RATIOS[ratio] for ratio in ratios]}
    del words["compress_ratios"]
    one, other = (read(written(tmp_path, fields))[0] for fields in (numbers, words))
    assert one == other
    assert [one.compressed.ratios[i % len(one.compressed.ratios)] for i in range(layers)] == ratios


@pytest.mark.parametrize("marks", [[0, 0, 0] + [1] * 57, [1, 0] * 30])
def test_layers_of_sparse_attention_are_the_same_in_words_and_in_marks(tmp_path, marks):
    names = ["minimax_m3_sparse" if mark else "full_attention" for mark in marks]
    text = config("minimax-m3")["text_config"]
    rest = {key: value for key, value in text["sparse_attention_config"].items() if key != "sparse_attention_freq"}
    marked = config("minimax-m3", text_config={**text, "sparse_attention_config": {**rest, "sparse_attention_freq": marks}})
    named = config("minimax-m3", text_config={**text, "sparse_attention_config": rest, "layer_types": names})
    one, other = (read(written(tmp_path, given))[0] for given in (marked, named))
    assert one == other
    assert [one.sparse.pattern[i % len(one.sparse.pattern)] for i in range(60)] == ["full" if mark else "dense" for mark in marks]


# ------------------------------------------------------------------------------------------ wrong files
# ------------------------------------------------------------------------------------------ wrong files


def test_an_unknown_family_is_told_with_what_was_read(tmp_path):
    fields = {"architectures": ["RwkvForCausalLM"], "model_type": "rwkv9", "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16}
    read_of_it = 'architectures = ["RwkvForCausalLM"], num_hidden_layers = 24, hidden_size = 768'
    near = (
        "the nearest known: xlstm, mamba, falcon_mamba (`crossflow list families` names all); if its layers are those of one, give its"
        " model_type and leave out architectures"
    )
    assert problems(written(tmp_path, fields)) == [(5, "model_type", f'unknown model_type "rwkv9"; read: {read_of_it}; {near}')]


def test_an_unknown_family_is_told_with_the_fields_that_are_not_known(tmp_path):
    """Those that say nothing, or are known to cost nothing, are not named; of an encoder with a decoder only such families are near."""
    fields = {
        "model_type": "novel",
        "hidden_size": 8,
        "vocab_size": 9,
        "is_encoder_decoder": True,
        "rope_theta": 1e4,
        "heads_x": 3,
        "none": False,
    }
    ((_, _, told),) = problems(written(tmp_path, fields))
    assert "; not known: heads_x; the nearest known: " in told
    assert set(told.partition("nearest known: ")[2].partition(" (")[0].split(", ")) == {"t5", "bart", "whisper"}
    many = {**fields, **{f"other_{i}": 1 for i in range(20)}}
    assert (
        "; not known: heads_x, other_0, other_1, other_2, other_3, other_4, other_5, other_6 and others; "
        in problems(written(tmp_path, many))[0][2]
    )


def test_choices_of_sparse_attention_that_disagree_are_told(tmp_path):
    fields = config("glm-5.2", mlp_layer_types=["sparse"] * 78, indexer_types=["full"] * 77)
    assert [found[1:] for found in problems(written(tmp_path, fields))] == [
        ("mlp_layer_types", "expected 3 layers of kind dense and 75 of kind sparse, as other fields say"),
        ("indexer_types", 'expected an entry for each of 78 layers, got ["full", "full", "full", "full", "full", "full", "full", "fu'),
    ]


@pytest.mark.parametrize("name", ["llama-2-7b", "mixtral-8x7b", "deepseek-v3", "mistral-7b", "mimo-7b", "glm-4.5-air"])
def test_an_unknown_family_is_read_by_its_fields(tmp_path, name):
    """A file of a known family under another name makes the same layers, and what is assumed is told."""
    spec, _ = read(written(tmp_path, config(name, model_type="novel")))
    whole, own = read(CONFIGS[name])[0].transformer(), spec.transformer()
    assert own.parameters == pytest.approx(whole.parameters, rel=1e-4)
    assert [layer.count for layer in own.layers] == [layer.count for layer in whole.layers]
    assert spec.notes.startswith(
        'model_type "novel" is not known: config.json is read by its fields. Assumed: rotary positions, RMS norms before attention and MLP'
    )


def test_fields_of_an_unknown_family_that_are_not_known_are_refused(tmp_path):
    path = written(tmp_path, config("llama-2-7b", model_type="novel", memory_slots=64, sparse={"top": 4}))
    assert [message for *_, message in problems(path)] == [
        'model_type "novel" is not known, nor are its fields memory_slots, sparse; leave out those that change no cost,'
        ' or give model_type "llama", the nearest known family'
    ]


def test_small_factors_of_an_unknown_family_are_left_out_and_told(tmp_path):
    spec, _ = read(written(tmp_path, config("llama-2-7b", model_type="novel", odd_share=0.5)))
    assert spec.notes.endswith("Fields of config.json that are not known are left out: odd_share.")


@pytest.mark.parametrize(
    ("name", "nearest"), [("deepseek-v3", "deepseek_v3"), ("qwen3-next-80b-a3b", "qwen3_next"), ("kimi-k3", "kimi_linear")]
)
def test_the_nearest_family_is_named(tmp_path, name, nearest):
    fields = config(name)
    fields = {**fields.get("text_config", fields), "model_type": "novel", "architectures": ["NovelForCausalLM"], "memory_slots": 64}
    assert f'or give model_type "{nearest}", the nearest known family' in problems(written(tmp_path, fields))[0][2]


def test_kimi_linear_has_gates_of_a_latent_and_no_attention_residuals(tmp_path):
    """Each of the 69 layers with Kimi delta attention has two products of rank 128 in the place of one of full rank in Kimi K3."""
    fields = config("kimi-k3")["text_config"]
    linear = {**fields["linear_attn_config"], "use_full_rank_gate": False}
    own = {**fields, "linear_attn_config": linear, "attn_res_block_size": None, "max_position_embeddings": None, "model_max_length": 4096}
    spec = read(written(tmp_path, own))[0]
    less = 69 * (7168 * 12288 - 128 * (7168 + 12288)) + 93 * 4 * 7168
    assert (spec.sequence, COUNTED["kimi-k3"] - spec.transformer().parameters) == (4096, less)


def test_fields_of_a_known_family_that_are_not_known_are_told(tmp_path):
    assert (
        read(written(tmp_path, config("llama-2-7b", future=1)))[0].notes == "Fields of config.json that are not known are left out: future."
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"block_configs": [{}] * 3}, "expected an entry for each of 80 layers, got 3"),
        (
            {"block_configs": [{"attention": {"replace_with_linear": True}}] * 80},
            "attention.replace_with_linear = true of layer 0 is not modelled; set it to null",
        ),
        ({"block_configs": None}, "expected a list of layers, each with its attention and ffn, got null"),
    ],
)
def test_blocks_that_are_not_modelled_are_told(tmp_path, changes, sentence):
    assert sentence in [message for *_, message in problems(written(tmp_path, config("nemotron-super-49b", **changes)))]


def test_layers_with_experts_are_listed_by_marks_or_numbers(tmp_path):
    marks = read(CONFIGS["mimo-v2-flash"])[0]
    some = read(written(tmp_path, config("mimo-v2-flash", moe_layer_freq=[0, 1] * 24)))[0]
    assert (marks.experts.dense_layers, marks.variants[-1].experts) == (1, True)
    assert [kind.beside for kind in some.kinds(4)] == ["mlp", "experts", "mlp", "experts"]
    assert problems(written(tmp_path, config("mimo-v2-flash", moe_layer_freq=[0, 2] * 24)))[0][2].startswith(
        "expected a mark for each of 48 layers"
    )


def test_a_file_without_a_family_is_told(tmp_path):
    message = "the key 'model_type' is missing; read: no dimensions; `crossflow list families` names those that are known"
    assert problems(written(tmp_path, {})) == [(None, "model_type", message)]


@pytest.mark.parametrize(
    ("name", "architecture", "known"),
    [
        ("llama-2-7b", "LlamaForQuestionAnswering", "...ForCausalLM, ...LMHeadModel, ...Model"),
        ("bert-base-uncased", "BertLMHeadModel", "...ForMaskedLM, ...ForPreTraining, ...Model"),
        ("t5-large", "T5EncoderModel", "...ForConditionalGeneration, ...LMHeadModel"),
    ],
)
def test_an_unknown_architecture_is_told(tmp_path, name, architecture, known):
    fields = config(name, architectures=[architecture])
    message = f"[\"{architecture}\"] is not modelled for model_type '{fields['model_type']}'; known: {known}"
    assert [found[1:] for found in problems(written(tmp_path, fields))] == [("architectures", message)]


@pytest.mark.parametrize(
    ("name", "missing", "message"),
    [
        (
            "llama-2-7b",
            ["vocab_size"],
            "the key 'vocab_size' is missing; a file of model_type 'llama' needs it, or give workload.vocabulary",
        ),
        (
            "gpt2",
            ["n_embd", "n_layer", "vocab_size"],
            "the keys 'num_hidden_layers' (or 'n_layer'), 'hidden_size' (or 'n_embd'), 'vocab_size' are missing; a file of model_type 'gpt2' needs them, or give workload.layers, workload.hidden, workload.vocabulary",
        ),
        (
            "deepseek-v3",
            ["n_routed_experts", "kv_lora_rank"],
            "the keys 'n_routed_experts', 'kv_lora_rank' are missing; a file of model_type 'deepseek_v3' needs them, or give workload.experts.count, workload.latent.kv_rank",
        ),
    ],
)
def test_missing_fields_are_told_all_at_once(tmp_path, name, missing, message):
    assert problems(written(tmp_path, config(name, **dict.fromkeys(missing, ...)))) == [(None, "", message)]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama-2-7b", {"hidden_size": "4096"}, 'expected a whole number of at least 1, got "4096"'),
        ("llama-2-7b", {"num_hidden_layers": 0}, "expected a whole number of at least 1, got 0"),
        ("llama-2-7b", {"num_attention_heads": 32.0}, "expected a whole number of at least 1, got 32.0"),
        ("llama-2-7b", {"num_key_value_heads": True}, "expected a whole number of at least 1, got true"),
        ("llama-2-7b", {"tie_word_embeddings": "no"}, 'expected true or false, got "no"'),
        ("llama-2-7b", {"_name_or_path": 7}, "expected text, got 7"),
        ("falcon-7b", {"parallel_attn": "yes"}, 'expected true or false, got "yes"'),
        ("deepseek-v3", {"first_k_dense_replace": -1}, "expected a whole number of at least 0, got -1"),
        ("opt-1.3b", {"word_embed_proj_dim": 512}, "512 is not modelled where hidden_size = 2048"),
        ("opt-1.3b", {"do_layer_norm_before": False}, "false is not modelled; known: true"),
        ("codestral-mamba-7b", {"hidden_act": "gelu"}, '"gelu" is not modelled; known: "silu", "swish"'),
        ("nemotron-h-8b", {"mamba_hidden_act": "gelu"}, '"gelu" is not modelled; known: "silu", "swish"'),
        (
            "t5-large",
            {"feed_forward_proj": "gated-tanh"},
            '"gated-tanh" is not modelled; known: "relu", "gelu", "gated-gelu", "gated-silu"',
        ),
        ("qwen3-30b-a3b", {"mlp_only_layers": [48]}, "expected numbers of layers from 0 to 47, got [48]"),
        ("dinov2-large", {"use_swiglu_ffn": True}, "true is not modelled; known: false"),
        ("glm-4.5", {"num_nextn_predict_layers": -1}, "expected a whole number of at least 0, got -1"),
        ("mistral-7b", {"sliding_window": "4096"}, 'expected a whole number of at least 1, got "4096"'),
        ("gemma-3-1b", {"sliding_window_pattern": 0}, "expected a whole number of at least 1, got 0"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"] * 23}, "expected an entry for each of 24 layers, got 23"),
        (
            "gpt-oss-20b",
            {"layer_types": ["linear_attention"] * 24},
            '"linear_attention" is not modelled; known: "sliding_attention", "chunked_attention", "full_attention"',
        ),
    ],
)
def test_wrong_values_are_told_with_their_field(tmp_path, name, changes, message):
    path = written(tmp_path, config(name, **changes))
    (key,) = changes
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if f'"{key}"' in text)
    assert problems(path) == [(line, key, message)]


def test_lists_of_layers_that_do_not_agree_are_told(tmp_path):
    inner = {**config("llama-4-maverick")["text_config"], "moe_layers": [0, 2], "layer_types": ["chunked_attention"] * 48}
    found = [problem[1:] for problem in problems(written(tmp_path, {"model_type": "llama4", "text_config": inner}))]
    assert found == [
        ("text_config.moe_layers", "[0, 2] is not modelled where experts.every = 2"),
        ("text_config.no_rope_layers", "is not modelled where layer_types makes other layers local"),
    ]


def test_all_wrong_values_are_told_at_once(tmp_path):
    path = written(tmp_path, config("llama-2-7b", hidden_size=None, vocab_size="many", num_hidden_layers=-1))
    assert [found[1] for found in problems(path)] == ["", "num_hidden_layers", "vocab_size"]


def test_a_wrong_value_of_the_text_part_is_told_there(tmp_path):
    inner = config("llama-2-7b", hidden_size=-1)
    assert [found[1] for found in problems(written(tmp_path, {"model_type": "llava", "text_config": inner}))] == ["text_config.hidden_size"]


@pytest.mark.parametrize("text", ["Infinity", "-Infinity", "NaN"])
@pytest.mark.parametrize("name", ["num_hidden_layers", "attention_dropout", "unheard_of"])
def test_numbers_that_are_not_finite_are_told_where_they_may_matter(tmp_path, name, text):
    path = written(tmp_path, config("llama-2-7b", **{name: float(text)}))
    line = next(i for i, line in enumerate(path.read_text().splitlines(), 1) if name in line)
    assert problems(path) == [(line, name, f"expected finite numbers, got {text}")]


def test_numbers_that_are_not_finite_do_no_harm_where_nothing_depends_on_them(tmp_path):
    """Files of state-space models have them: Python writes a limit that is none as Infinity."""
    plain, limited = (
        huggingface_document(written(tmp_path, config("codestral-mamba-7b", **given)))[0].data
        for given in ({}, {"time_step_limit": [0.0, float("inf")]})
    )
    assert plain == limited


BROKEN = [
    (
        json.dumps({"model_type": "llama", "hidden_size": 4096}, indent=1)[:30],
        3,
        "not valid JSON: it ends before it is complete; was it copied whole?",
    ),
    ("", 1, "not valid JSON: it ends before it is complete; was it copied whole?"),
    ('{"model_type": llama}', 1, "not valid JSON: expecting value"),
    ('{"layers": 1, "layers": 2}', None, "not valid JSON: duplicate key 'layers'"),
    ("[" * 100_000, None, "not valid JSON: it is nested too deeply: more than 64 lists and mappings inside one another"),
    ("[1]", None, "expected the fields of a model, got a list"),
]


@pytest.mark.parametrize(("text", "line", "message"), BROKEN)
def test_broken_files_are_told(tmp_path, text, line, message):
    assert problems(written(tmp_path, text)) == [(line, "", message)]


def test_files_that_cannot_be_read_are_told(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    assert problems(tmp_path / "none.json") == [(None, "", "cannot be read: No such file or directory")]
    assert problems(tmp_path / "binary.json") == [(None, "", "cannot be read: it is not UTF-8 text (line 1); save it as UTF-8")]


@pytest.mark.parametrize("model", ["qwen", "qwen/", "qwen/config.json"])
def test_a_scenario_names_a_model_by_the_folder_of_its_file(tmp_path, model):
    (tmp_path / "qwen").mkdir()
    written(tmp_path / "qwen", config("llama-2-7b"))
    path = tmp_path / "s.yaml"
    path.write_text(f"system: dgx-h100\nworkload: {{model: {model}, global_batch: 8}}\nstrategy: dp8\n")
    assert crossflow.load(path).document.data["workload"]["model"] == "qwen/config.json"
    path.write_text(f"system: dgx-h100\nworkload: {model}\nstrategy: dp8\n")
    assert crossflow.load(path, ["workload.global_batch=16"]).workload.global_batch == 16


@pytest.mark.parametrize(("listed", "meant"), [([4, 4, 4], 4), ([4], 4), ([4, 2], [4, 2]), ([True, True], [True, True]), ([], []), (4, 4)])
def test_a_list_of_one_number_for_all_layers_is_that_number(listed, meant):
    assert _alike(listed) == meant


OF_SINGLE_LAYERS = {"5": {"head_dim": 512, "num_key_value_heads": 4}, "11": {"head_dim": 512, "num_key_value_heads": 4}}


def test_single_layers_have_dimensions_of_their_own(tmp_path):
    """Newer versions of transformers write them by the number of the layer, in files of any family."""
    fields = config("qwen3-8b", per_layer_config=OF_SINGLE_LAYERS)
    usual, own = read(CONFIGS["qwen3-8b"])[0].transformer(), read(written(tmp_path, fields))[0].transformer()
    assert own.parameters - usual.parameters == 2 * (2 * 4096 * 32 * (512 - 128) + 2 * 4096 * (4 * 512 - 8 * 128) + 2 * (512 - 128))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"36": {"head_dim": 64}}, 'expected fields of single layers by their numbers from 0 to 35, got {"36": {"head_dim": 64}}'),
        ([{"head_dim": 64}], 'expected fields of single layers by their numbers from 0 to 35, got [{"head_dim": 64}]'),
        ({"3": {"head_dim": "wide"}}, 'head_dim of layer 3: expected a whole number of at least 1, got "wide"'),
        (
            {"3": {"mixer": 2}},
            "mixer of layer 3 is not modelled; known: head_dim, intermediate_size, num_attention_heads, num_key_value_heads; leave it out",
        ),
    ],
)
def test_dimensions_of_single_layers_that_cannot_be_read_are_told(tmp_path, given, sentence):
    (found,) = problems(written(tmp_path, config("qwen3-8b", per_layer_config=given)))
    assert found[1] == "per_layer_config"
    assert found[2].startswith(sentence)


def test_a_mixture_without_an_mlp_needs_no_width_of_one(tmp_path):
    """Files of mixtures whose layers all have experts often give no intermediate_size; one with a dense layer must."""
    fields = config("qwen3-30b-a3b")
    del fields["intermediate_size"]
    assert read(written(tmp_path, fields))[0].transformer().parameters == COUNTED["qwen3-30b-a3b"]
    fields = config("glm-4.5-air")
    del fields["intermediate_size"]
    assert "'intermediate_size'" in problems(written(tmp_path, fields))[0][2]


def test_a_model_whose_heads_of_attention_are_experts_is_refused(tmp_path):
    (found,) = problems(written(tmp_path, config("qwen3-8b", model_type="jetmoe")))
    assert found[2].endswith("its heads of attention are experts too, which is not modelled; the nearest family is mixtral")


def test_ling_chooses_experts_by_groups_and_sigmoids(tmp_path):
    fields = config("ling-flash-2.0")
    for name in ("bailing_moe", "bailing_moe_v2"):
        mixture = read(written(tmp_path, {**fields, "model_type": name}))[0].experts
        assert (mixture.groups, mixture.active_groups, mixture.score, mixture.balance_bias) == (8, 4, "sigmoid", True)
