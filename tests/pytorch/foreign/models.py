"""Sixty models that nobody here wrote, or that are written as scripts of users are, small enough to run on a CPU.

Each is a function that returns what `crossflow import` takes. Packages are imported where they are used, as scripts do.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from tests.pytorch.foreign import scripts

BATCH, LENGTH = 4, 32


def images(size: int, batch: int = BATCH) -> Any:
    return torch.randn(batch, 3, size, size)


# ------------------------------------------------------------------------------------------ torchvision and timm


def torchvision(name: str, size: int = 64, **options: Any) -> Any:
    import torchvision.models

    return torchvision.models.get_model(name, weights=None, **options), images(size)


def segmented(name: str) -> Any:
    import torchvision.models

    model = torchvision.models.get_model(name, weights=None, weights_backbone=None)
    return model, images(64), lambda out: out["out"].square().mean()


def video() -> Any:
    import torchvision.models

    return torchvision.models.get_model("r3d_18", weights=None), torch.randn(BATCH, 3, 4, 32, 32)


def flow() -> Any:
    import torchvision.models

    model = torchvision.models.get_model("raft_small", weights=None)
    return model, (images(128), images(128)), lambda flows: sum(one.abs().mean() for one in flows)


def timm(name: str, size: int = 224, **options: Any) -> Any:
    import timm as package

    return package.create_model(name, pretrained=False, **options), images(size)


# ---------------------------------------------------------------------------------------------------- transformers

DEEP = {
    "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 256,
    "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**DEEP, "num_key_value_heads": 2, "head_dim": 16}
ROUTED = {**GROUPED, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    **DEEP, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1,
}  # fmt: skip
BOTH = {
    "d_model": 64, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 256, "max_position_embeddings": 128, "pad_token_id": 0,
    "decoder_start_token_id": 0, "eos_token_id": 0, "bos_token_id": 0,
}  # fmt: skip
SEES = {**DEEP, "image_size": 32, "patch_size": 8}


def configured(kind: str, keys: dict[str, Any], auto: str) -> Any:
    import transformers

    config = transformers.AutoConfig.for_model(kind, **keys)
    config.use_cache = False
    return getattr(transformers, auto).from_config(config)


def tokens() -> Any:
    return torch.randint(1, 256, (BATCH, LENGTH))


def language(kind: str, auto: str = "AutoModelForCausalLM", **keys: Any) -> Any:
    ids = tokens()
    return configured(kind, keys, auto), {"input_ids": ids, "labels": ids}


def classifier(kind: str, **keys: Any) -> Any:
    inputs = {"input_ids": tokens(), "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long), "labels": torch.zeros(BATCH).long()}
    return configured(kind, keys, "AutoModelForSequenceClassification"), inputs


def vision(kind: str, size: int = 32, auto: str = "AutoModelForImageClassification", **keys: Any) -> Any:
    return configured(kind, keys, auto), {"pixel_values": images(size), "labels": torch.zeros(BATCH).long()}


def speech() -> Any:
    keys = {**BOTH, "max_source_positions": 32, "max_target_positions": 128, "num_mel_bins": 16}
    model = configured("whisper", keys, "AutoModelForSpeechSeq2Seq")
    return model, {"input_features": torch.randn(BATCH, 16, 64), "labels": tokens()}


def sounds() -> Any:
    keys = {**DEEP, "conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
            "apply_spec_augment": False, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
            "classifier_proj_size": 32}  # fmt: skip
    model = configured("wav2vec2", keys, "AutoModelForAudioClassification")
    return model, {"input_values": torch.randn(BATCH, 1600), "labels": torch.zeros(BATCH).long()}


def clip() -> Any:
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(text_config={**DEEP, "eos_token_id": 255}, vision_config=SEES, projection_dim=32)
    return CLIPModel(config), {"input_ids": tokens(), "pixel_values": images(32), "return_loss": True}


def llava() -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**SEES), text_config=LlamaConfig(**GROUPED), image_token_index=255, vision_feature_layer=-1,
    )  # fmt: skip
    ids = torch.randint(1, 250, (BATCH, LENGTH))
    ids[:, :16] = 255
    return LlavaForConditionalGeneration(config), {"input_ids": ids, "pixel_values": images(32), "labels": ids}


def segformer() -> Any:
    keys = {"depths": [2, 2, 2, 2], "hidden_sizes": [16, 32, 64, 64], "num_attention_heads": [1, 2, 4, 4], "decoder_hidden_size": 32}
    model = configured("segformer", {**keys, "num_labels": 8}, "AutoModelForSemanticSegmentation")
    return model, {"pixel_values": images(64), "labels": torch.zeros(BATCH, 64, 64).long()}


# ------------------------------------------------------------------------------------------------------- diffusers


def denoiser(name: str, config: dict[str, Any], inputs: Callable[[], dict[str, Any]]) -> Any:
    import diffusers

    return getattr(diffusers, name)(**config), inputs(), lambda out: (out.sample if hasattr(out, "sample") else out[0]).square().mean()


def unet() -> Any:
    config = {
        "sample_size": 16, "block_out_channels": (32, 64), "cross_attention_dim": 32, "attention_head_dim": 8, "norm_num_groups": 8,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }  # fmt: skip
    return denoiser("UNet2DConditionModel", config, lambda: {
        "sample": torch.randn(BATCH, 4, 16, 16), "timestep": torch.full((BATCH,), 10), "encoder_hidden_states": torch.randn(BATCH, 8, 32),
    })  # fmt: skip


def plain_unet() -> Any:
    config = {
        "sample_size": 16, "block_out_channels": (32, 64), "norm_num_groups": 8, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }  # fmt: skip
    return denoiser("UNet2DModel", config, lambda: {"sample": torch.randn(BATCH, 3, 16, 16), "timestep": 10})


def autoencoder() -> Any:
    config = {"block_out_channels": (32, 64), "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
              "norm_num_groups": 8}  # fmt: skip
    return denoiser("AutoencoderKL", config, lambda: {"sample": torch.randn(BATCH, 3, 32, 32)})


def dit() -> Any:
    config = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 4, "sample_size": 16, "norm_type": "ada_norm_zero"}
    return denoiser("DiTTransformer2DModel", config, lambda: {
        "hidden_states": torch.randn(BATCH, 4, 16, 16), "timestep": torch.full((BATCH,), 10), "class_labels": torch.zeros(BATCH).long(),
    })  # fmt: skip


def sd3() -> Any:
    config = {
        "sample_size": 16, "patch_size": 2, "in_channels": 4, "num_layers": 4, "attention_head_dim": 16, "num_attention_heads": 4,
        "joint_attention_dim": 32, "caption_projection_dim": 64, "pooled_projection_dim": 32, "out_channels": 4, "pos_embed_max_size": 16,
    }  # fmt: skip
    return denoiser("SD3Transformer2DModel", config, lambda: {
        "hidden_states": torch.randn(BATCH, 4, 16, 16), "encoder_hidden_states": torch.randn(BATCH, 8, 32),
        "pooled_projections": torch.randn(BATCH, 32), "timestep": torch.full((BATCH,), 10),
    })  # fmt: skip


def flux() -> Any:
    config = {
        "in_channels": 16, "num_layers": 2, "num_single_layers": 4, "attention_head_dim": 16, "num_attention_heads": 4,
        "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 6, 6), "guidance_embeds": True,
    }  # fmt: skip
    return denoiser("FluxTransformer2DModel", config, lambda: {
        "hidden_states": torch.randn(BATCH, 16, 16), "encoder_hidden_states": torch.randn(BATCH, 8, 32),
        "pooled_projections": torch.randn(BATCH, 32), "timestep": torch.ones(BATCH), "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(8, 3), "guidance": torch.ones(BATCH),
    })  # fmt: skip


def wan() -> Any:
    config = {
        "num_attention_heads": 4, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4, "text_dim": 32, "freq_dim": 32,
        "ffn_dim": 128, "num_layers": 4, "rope_max_seq_len": 32,
    }  # fmt: skip
    return denoiser("WanTransformer3DModel", config, lambda: {
        "hidden_states": torch.randn(BATCH, 4, 2, 8, 8), "timestep": torch.full((BATCH,), 10),
        "encoder_hidden_states": torch.randn(BATCH, 8, 32),
    })  # fmt: skip


MODELS: dict[str, Callable[[], Any]] = {
    "torchvision resnet50": functools.partial(torchvision, "resnet50"),
    "torchvision mobilenet_v3_small": functools.partial(torchvision, "mobilenet_v3_small"),
    "torchvision efficientnet_b0": functools.partial(torchvision, "efficientnet_b0"),
    "torchvision convnext_tiny": functools.partial(torchvision, "convnext_tiny"),
    "torchvision densenet121": functools.partial(torchvision, "densenet121"),
    "torchvision regnet_y_400mf": functools.partial(torchvision, "regnet_y_400mf"),
    "torchvision googlenet": functools.partial(torchvision, "googlenet", 96, aux_logits=False, init_weights=False),
    "torchvision vit_b_16": functools.partial(torchvision, "vit_b_16", 64, image_size=64),
    "torchvision swin_t": functools.partial(torchvision, "swin_t"),
    "torchvision fcn_resnet50": functools.partial(segmented, "fcn_resnet50"),
    "torchvision r3d_18": video,
    "torchvision raft_small": flow,
    "timm vit_tiny_patch16_224": functools.partial(timm, "vit_tiny_patch16_224", embed_dim=128, num_heads=4),
    "timm deit3_small_patch16_224": functools.partial(timm, "deit3_small_patch16_224", depth=4),
    "timm eva02_tiny_patch14_224": functools.partial(timm, "eva02_tiny_patch14_224", embed_dim=128, num_heads=4, depth=4),
    "timm beit_base_patch16_224": functools.partial(timm, "beit_base_patch16_224", depth=4),
    "timm mixer_s32_224": functools.partial(timm, "mixer_s32_224"),
    "timm convnextv2_atto": functools.partial(timm, "convnextv2_atto", 96),
    "timm swinv2_tiny_window8_256": functools.partial(timm, "swinv2_tiny_window8_256", 256),
    "timm xcit_nano_12_p16_224": functools.partial(timm, "xcit_nano_12_p16_224"),
    "timm levit_128s": functools.partial(timm, "levit_128s"),
    "timm mobilevit_s": functools.partial(timm, "mobilevit_s", 128),
    "timm resnetv2_50": functools.partial(timm, "resnetv2_50", 96),
    "timm nfnet_l0": functools.partial(timm, "nfnet_l0", 96),
    "transformers llama": functools.partial(language, "llama", **GROUPED),
    "transformers gpt2": functools.partial(language, "gpt2", n_layer=4, n_embd=64, n_head=4, vocab_size=256, n_positions=128),
    "transformers gpt_neox": functools.partial(language, "gpt_neox", **DEEP),
    "transformers falcon": functools.partial(language, "falcon", **DEEP),
    "transformers bloom": functools.partial(language, "bloom", n_layer=4, hidden_size=64, n_head=4, vocab_size=256),
    "transformers opt": functools.partial(language, "opt", **{**DEEP, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "transformers gemma3_text": functools.partial(language, "gemma3_text", **GROUPED),
    "transformers phi3": functools.partial(language, "phi3", **GROUPED),
    "transformers qwen3": functools.partial(language, "qwen3", **GROUPED),
    "transformers mixtral": functools.partial(language, "mixtral", **ROUTED),
    "transformers gpt_oss": functools.partial(language, "gpt_oss", **ROUTED),
    "transformers deepseek_v3": functools.partial(language, "deepseek_v3", **LATENT),
    "transformers mamba2": functools.partial(
        language, "mamba2", num_hidden_layers=4, hidden_size=64, num_heads=8, head_dim=16, state_size=16, n_groups=2, vocab_size=256
    ),
    "transformers bert": functools.partial(language, "bert", "AutoModelForMaskedLM", **DEEP),
    "transformers roberta": functools.partial(classifier, "roberta", **DEEP),
    "transformers deberta-v2": functools.partial(classifier, "deberta-v2", **DEEP, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "transformers albert": functools.partial(language, "albert", "AutoModelForMaskedLM", **{**DEEP, "embedding_size": 32}),
    "transformers distilbert": functools.partial(
        classifier, "distilbert", n_layers=4, dim=64, hidden_dim=128, n_heads=4, vocab_size=256, max_position_embeddings=128
    ),
    "transformers t5": functools.partial(
        language, "t5", "AutoModelForSeq2SeqLM", d_model=64, d_kv=16, d_ff=128, num_layers=4, num_heads=4, vocab_size=256,
        decoder_start_token_id=0,
    ),
    "transformers bart": functools.partial(language, "bart", "AutoModelForSeq2SeqLM", **BOTH),
    "transformers whisper": speech,
    "transformers wav2vec2": sounds,
    "transformers vit": functools.partial(vision, "vit", **SEES),
    "transformers segformer": segformer,
    "transformers clip": clip,
    "transformers llava": llava,
    "diffusers UNet2DConditionModel": unet,
    "diffusers AutoencoderKL": autoencoder,
    "diffusers DiTTransformer2DModel": dit,
    "diffusers SD3Transformer2DModel": sd3,
    "diffusers FluxTransformer2DModel": flux,
    "diffusers WanTransformer3DModel": wan,
    "script nanogpt": scripts.nanogpt,
    "script torchtitan": scripts.titan,
    "script nn.Transformer": scripts.translator,
    "script dlrm": scripts.dlrm,
}  # fmt: skip
MORE: dict[str, Callable[[], Any]] = {"diffusers UNet2DModel": plain_unet}
