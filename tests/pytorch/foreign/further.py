"""More models that nobody here wrote, of other families than those of `models.py`, of two layers and small enough to run on a CPU."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from tests.pytorch.foreign import models
from tests.pytorch.foreign.models import (
    BATCH,
    LENGTH,
    classifier,
    configured,
    denoiser,
    images,
    language,
    timm,
    tokens,
    torchvision,
    vision,
)

DEEP, GROUPED, ROUTED, SEES = ({**keys, "num_hidden_layers": 2} for keys in (models.DEEP, models.GROUPED, models.ROUTED, models.SEES))
BOTH = {**models.BOTH, "encoder_layers": 2, "decoder_layers": 2}

# ------------------------------------------------------------------------------------------ torchvision and timm


def of_video(name: str, frames: int, size: int) -> Any:
    import torchvision.models

    return torchvision.models.get_model(name, weights=None), torch.randn(2, 3, frames, size, size)


def segmented(name: str) -> Any:
    import torchvision.models

    model = torchvision.models.get_model(name, weights=None, weights_backbone=None)
    return model, images(64), lambda out: out["out"].square().mean()


def detected(name: str, size: int = 64) -> Any:
    """As torchvision's reference script trains it: losses by name of images with boxes."""
    import torchvision.models

    model = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=3)
    boxes = torch.tensor([[4.0, 4.0, 30.0, 30.0], [10.0, 12.0, 50.0, 40.0]])
    masks = torch.zeros(2, size, size, dtype=torch.uint8)
    targets = [{"boxes": boxes.clone(), "labels": torch.ones(2, dtype=torch.long), "masks": masks.clone()} for _ in range(2)]
    return model, ([torch.randn(3, size, size) for _ in range(2)], targets), lambda losses: sum(losses.values())


# ---------------------------------------------------------------------------------------------------- transformers

LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
HYBRID = {**GROUPED, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
BIG_MAMBA = {**HYBRID, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}
TEXT = {**DEEP, "eos_token_id": 255, "bos_token_id": 1}


def kept(keys: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if name not in names}


def masked(kind: str, length: int = LENGTH, **keys: Any) -> Any:
    ids = torch.randint(1, 256, (BATCH, length))
    return configured(kind, {**DEEP, **keys}, "AutoModelForMaskedLM"), {"input_ids": ids, "labels": ids}


def two_towers(kind: str, text: dict[str, Any], seen: dict[str, Any], **keys: Any) -> Any:
    model = configured(kind, {"text_config": text, "vision_config": seen, **keys}, "AutoModel")
    return model, {"input_ids": tokens(), "pixel_values": images(32), "return_loss": True}


def speaking(kind: str, text: dict[str, Any], seen: dict[str, Any], image: int, many: int, pixels: Callable[[], Any], **keys: Any) -> Any:
    """A language model that sees images in the places of a token."""
    model = configured(kind, {"text_config": text, "vision_config": seen, **keys}, "AutoModelForImageTextToText")
    ids = torch.randint(2, 240, (BATCH, LENGTH))
    ids[:, 2 : 2 + many] = image
    return model, {"input_ids": ids, "labels": ids, **pixels()}


def qwen_vl(kind: str, **seen: Any) -> Any:
    text = {**GROUPED, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}}
    ids = torch.arange(LENGTH).repeat(2, 1)  # as a processor gives them: numbers that are known
    ids[:, 2:18] = 250
    tower = {
        "depth": 2,
        "embed_dim": 64,
        "hidden_size": 64,
        "num_heads": 4,
        "patch_size": 4,
        "in_channels": 3,
        "intermediate_size": 128,
        "out_hidden_size": 64,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        **seen,
    }
    model = configured(
        kind,
        {
            "text_config": text,
            "vision_config": tower,
            "image_token_id": 250,
            "video_token_id": 251,
            "vision_start_token_id": 252,
            "vision_end_token_id": 253,
        },
        "AutoModelForImageTextToText",
    )
    return model, {
        "input_ids": ids,
        "labels": ids,
        "pixel_values": torch.randn(128, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 8, 8]] * 2),
        "mm_token_type_ids": (ids == 250).int(),
    }


def pictured(kind: str, inputs: Callable[[], dict[str, Any]], auto: str = "AutoModel", loss: Any = None, **keys: Any) -> Any:
    import transformers

    config = transformers.AutoConfig.for_model(kind, **keys)
    model = getattr(transformers, auto)(config) if auto.startswith("Patch") else getattr(transformers, auto).from_config(config)
    return (model, inputs()) if loss is None else (model, inputs(), loss)


def first(out: Any) -> Any:
    return out[0].float().square().mean()


def of_frames(kind: str, **keys: Any) -> Any:
    model = configured(kind, {**SEES, "num_frames": 4, **keys}, "AutoModelForVideoClassification")
    return model, {"pixel_values": torch.randn(2, 4, 3, 32, 32), "labels": torch.zeros(2).long()}


def detr() -> Any:
    from transformers import AutoConfig, DetrConfig, DetrForObjectDetection

    seen = AutoConfig.for_model("resnet", depths=[1, 1], hidden_sizes=[16, 32], embedding_size=16, out_features=["stage2"])
    config = DetrConfig(
        backbone_config=seen,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        num_queries=10,
        num_labels=4,
    )
    return DetrForObjectDetection(config), {"pixel_values": images(64)}, lambda out: out.logits.mean() + out.pred_boxes.mean()


def sam() -> Any:
    from transformers import SamConfig, SamMaskDecoderConfig, SamModel, SamPromptEncoderConfig, SamVisionConfig

    seen = SamVisionConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=64,
        patch_size=16,
        output_channels=32,
        mlp_dim=64,
        window_size=2,
        num_pos_feats=16,
        global_attn_indexes=[1],
    )
    config = SamConfig(
        vision_config=seen,
        prompt_encoder_config=SamPromptEncoderConfig(hidden_size=32, image_size=64, patch_size=16, image_embedding_size=4),
        mask_decoder_config=SamMaskDecoderConfig(hidden_size=32, mlp_dim=64, num_attention_heads=4, iou_head_hidden_dim=32),
    )
    inputs = {"pixel_values": images(64, 2), "input_points": torch.full((2, 1, 2, 2), 16.0), "input_labels": torch.ones(2, 1, 2).long()}
    return SamModel(config), inputs, lambda out: out.pred_masks.mean() + out.iou_scores.mean()


def encodec() -> Any:
    keys = {
        "num_filters": 8,
        "hidden_size": 32,
        "codebook_size": 64,
        "codebook_dim": 32,
        "target_bandwidths": [24.0],
        "upsampling_ratios": [4, 2],
        "num_lstm_layers": 1,
    }
    return pictured("encodec", lambda: {"input_values": torch.randn(2, 1, 1600)}, loss=lambda out: out.audio_values.mean(), **keys)


def mimi() -> Any:
    keys = {
        "num_filters": 8,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "intermediate_size": 64,
        "codebook_size": 64,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "upsample_groups": 32,
        "num_quantizers": 4,
        "num_semantic_quantizers": 1,
        "upsampling_ratios": [4, 2],
        "sliding_window": 16,
    }
    return pictured("mimi", lambda: {"input_values": torch.randn(2, 1, 1600)}, loss=lambda out: out.audio_values.mean(), **keys)


def vits() -> Any:
    """Of VITS the library has no training step; its encoder of text trains alone."""
    from transformers import VitsConfig, VitsModel

    config = VitsConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=64,
        flow_size=32,
        spectrogram_bins=65,
        upsample_initial_channel=32,
        upsample_rates=[2, 2],
        upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
    )
    model = VitsModel(config)
    return (
        model.text_encoder,
        {
            "input_ids": torch.randint(1, 64, (2, 16)),
            "padding_mask": torch.ones(2, 16, 1),
            "attention_mask": torch.ones(2, 16),
        },
        lambda out: out.last_hidden_state.mean() + out.prior_means.mean(),
    )


def speech_of(kind: str, auto: str, **keys: Any) -> Any:
    base = {
        **DEEP,
        "conv_dim": (32, 32),
        "conv_stride": (5, 2),
        "conv_kernel": (10, 3),
        "num_feat_extract_layers": 2,
        "apply_spec_augment": False,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        "classifier_proj_size": 32,
    }
    return configured(kind, {**base, **keys}, auto), {"input_values": torch.randn(BATCH, 1600), "labels": torch.zeros(BATCH).long()}


def perceiver() -> Any:
    keys = {
        "num_latents": 8,
        "d_latents": 32,
        "d_model": 32,
        "num_blocks": 1,
        "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 4,
        "vocab_size": 64,
        "max_position_embeddings": 32,
        "qk_channels": 32,
        "v_channels": 32,
    }
    ids = torch.randint(0, 64, (BATCH, 32))
    return configured("perceiver", keys, "AutoModelForMaskedLM"), {"inputs": ids, "labels": ids, "attention_mask": torch.ones(BATCH, 32)}


def blip2() -> Any:
    from transformers import Blip2Config, Blip2ForConditionalGeneration, Blip2QFormerConfig, Blip2VisionConfig, OPTConfig

    text = OPTConfig(**kept(DEEP, "intermediate_size"), ffn_dim=128, word_embed_proj_dim=64)
    former = Blip2QFormerConfig(**DEEP, encoder_hidden_size=64, cross_attention_frequency=2)
    config = Blip2Config(
        vision_config=Blip2VisionConfig(**SEES), qformer_config=former, text_config=text, num_query_tokens=8, image_token_index=255
    )
    ids = torch.randint(2, 250, (BATCH, LENGTH))
    ids[:, :8] = 255
    return Blip2ForConditionalGeneration(config), {"input_ids": ids, "pixel_values": images(32), "labels": ids}


# ------------------------------------------------------------------------------------------------------- diffusers


def video_latents(channels: int = 4, frames: int = 2, size: int = 8) -> Any:
    return torch.randn(2, channels, frames, size, size)


def times(batch: int = 2) -> Any:
    return torch.full((batch,), 10)


def pixart() -> Any:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "num_layers": 2,
        "sample_size": 16,
        "cross_attention_dim": 64,
        "caption_channels": 32,
        "in_channels": 4,
        "out_channels": 8,
        "norm_num_groups": 8,
        "use_additional_conditions": False,
    }
    return denoiser(
        "PixArtTransformer2DModel",
        config,
        lambda: {
            "hidden_states": torch.randn(2, 4, 16, 16),
            "timestep": times(),
            "encoder_hidden_states": torch.randn(2, 8, 32),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
    )


def cogvideo() -> Any:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "in_channels": 4,
        "out_channels": 4,
        "time_embed_dim": 32,
        "text_embed_dim": 32,
        "num_layers": 2,
        "sample_width": 8,
        "sample_height": 8,
        "sample_frames": 9,
        "patch_size": 2,
        "max_text_seq_length": 8,
    }
    return denoiser(
        "CogVideoXTransformer3DModel",
        config,
        lambda: {
            "hidden_states": torch.randn(2, 3, 4, 8, 8),
            "timestep": times(),
            "encoder_hidden_states": torch.randn(2, 8, 32),
        },
    )


def hunyuan() -> Any:
    config = {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "num_layers": 2,
        "num_single_layers": 2,
        "num_refiner_layers": 1,
        "patch_size": 2,
        "patch_size_t": 1,
        "text_embed_dim": 32,
        "pooled_projection_dim": 32,
        "rope_axes_dim": (4, 6, 6),
    }
    return denoiser(
        "HunyuanVideoTransformer3DModel",
        config,
        lambda: {
            "hidden_states": video_latents(),
            "timestep": times(),
            "encoder_hidden_states": torch.randn(2, 8, 32),
            "encoder_attention_mask": torch.ones(2, 8),
            "pooled_projections": torch.randn(2, 32),
            "guidance": torch.full((2,), 6.0),
        },
    )


def ltx() -> Any:
    config = {
        "in_channels": 8,
        "out_channels": 8,
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "cross_attention_dim": 64,
        "num_layers": 2,
        "caption_channels": 32,
    }
    return denoiser(
        "LTXVideoTransformer3DModel",
        config,
        lambda: {
            "hidden_states": torch.randn(2, 32, 8),
            "timestep": times(),
            "encoder_hidden_states": torch.randn(2, 8, 32),
            "encoder_attention_mask": torch.ones(2, 8),
            "num_frames": 2,
            "height": 4,
            "width": 4,
        },
    )


def sana() -> Any:
    config = {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "num_layers": 2,
        "sample_size": 8,
        "num_cross_attention_heads": 4,
        "cross_attention_head_dim": 16,
        "cross_attention_dim": 64,
        "caption_channels": 32,
    }
    return denoiser(
        "SanaTransformer2DModel",
        config,
        lambda: {
            "hidden_states": torch.randn(2, 4, 8, 8),
            "timestep": times(),
            "encoder_hidden_states": torch.randn(2, 8, 32),
        },
    )


def qwen_image() -> Any:
    config = {
        "in_channels": 16,
        "out_channels": 4,
        "num_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "axes_dims_rope": (4, 6, 6),
    }
    return denoiser(
        "QwenImageTransformer2DModel",
        config,
        lambda: {
            "hidden_states": torch.randn(2, 16, 16),
            "timestep": torch.ones(2),
            "encoder_hidden_states": torch.randn(2, 8, 32),
            "encoder_hidden_states_mask": torch.ones(2, 8).long(),
            "img_shapes": [[(1, 4, 4)]] * 2,
        },
    )


def video_autoencoder() -> Any:
    config = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2], "num_res_blocks": 1, "temperal_downsample": [False]}
    return denoiser("AutoencoderKLWan", config, lambda: {"sample": torch.randn(1, 3, 1, 16, 16)})


def controlled() -> Any:
    config = {
        "block_out_channels": (32, 64),
        "cross_attention_dim": 32,
        "attention_head_dim": 8,
        "norm_num_groups": 8,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    }
    import diffusers

    inputs = {
        "sample": torch.randn(2, 4, 16, 16),
        "timestep": times(),
        "encoder_hidden_states": torch.randn(2, 8, 32),
        "controlnet_cond": images(128, 2),
    }
    return diffusers.ControlNetModel(**config), inputs, lambda out: sum(one.mean() for one in out.down_block_res_samples)


# ------------------------------------------------------------------------------------------------------- torchtitan


def titan(kind: str) -> Any:
    import importlib

    package = importlib.import_module(f"torchtitan.models.{kind}")
    options = {"attn_backend": "flex"} | ({"moe_comm_backend": "standard"} if kind in ("deepseek_v3", "gpt_oss") else {})
    model = package.model_registry("debugmodel", **options).model.build()
    model.init_states(buffer_device=torch.device("cpu"))
    ids = tokens()
    places = torch.arange(LENGTH).expand(BATCH, -1)
    return model, (ids, places, model.get_attention_masks(places))


small = functools.partial  # a row each
FURTHER: dict[str, Callable[[], Any]] = {
    "torchvision swin_v2_t": small(torchvision, "swin_v2_t"),
    "torchvision maxvit_t": small(torchvision, "maxvit_t", 224),
    "torchvision shufflenet_v2_x1_0": small(torchvision, "shufflenet_v2_x1_0"),
    "torchvision vgg11_bn": small(torchvision, "vgg11_bn"),
    "torchvision deeplabv3_mobilenet_v3_large": small(segmented, "deeplabv3_mobilenet_v3_large"),
    "torchvision mvit_v2_s": small(of_video, "mvit_v2_s", 16, 224),
    "torchvision swin3d_t": small(of_video, "swin3d_t", 4, 64),
    "torchvision s3d": small(of_video, "s3d", 16, 224),
    "torchvision retinanet_resnet50_fpn": small(detected, "retinanet_resnet50_fpn"),
    "torchvision fasterrcnn_mobilenet_v3_large_fpn": small(detected, "fasterrcnn_mobilenet_v3_large_fpn"),
    "torchvision ssdlite320_mobilenet_v3_large": small(detected, "ssdlite320_mobilenet_v3_large"),
    "torchvision fcos_resnet50_fpn": small(detected, "fcos_resnet50_fpn"),
    "torchvision maskrcnn_resnet50_fpn": small(detected, "maskrcnn_resnet50_fpn"),
    "timm efficientvit_b0": small(timm, "efficientvit_b0", 64),
    "timm efficientvit_m0": small(timm, "efficientvit_m0", 224),
    "timm maxvit_rmlp_pico_rw_256": small(timm, "maxvit_rmlp_pico_rw_256", 256),
    "timm coatnet_pico_rw_224": small(timm, "coatnet_pico_rw_224", 224),
    "timm gmlp_s16_224": small(timm, "gmlp_s16_224"),
    "timm vit_small_patch14_reg4_dinov2": small(timm, "vit_small_patch14_reg4_dinov2", 70, img_size=70, depth=2),
    "timm vit_base_patch16_siglip_224": small(timm, "vit_base_patch16_siglip_224", depth=2, embed_dim=64, num_heads=4),
    "timm vit_small_patch16_dinov3": small(timm, "vit_small_patch16_dinov3", 64, depth=2),
    "timm regnety_002": small(timm, "regnety_002", 64),
    "timm nf_resnet26": small(timm, "nf_resnet26", 64),
    "timm mobilenetv4_conv_small": small(timm, "mobilenetv4_conv_small", 64),
    "timm fastvit_t8": small(timm, "fastvit_t8", 64),
    "timm poolformer_s12": small(timm, "poolformer_s12", 64),
    "timm caformer_s18": small(timm, "caformer_s18", 64),
    "timm hiera_tiny_224": small(timm, "hiera_tiny_224"),
    "timm davit_tiny": small(timm, "davit_tiny", 64),
    "timm twins_svt_small": small(timm, "twins_svt_small", 64),
    "timm pvt_v2_b0": small(timm, "pvt_v2_b0", 64),
    "timm crossvit_tiny_240": small(timm, "crossvit_tiny_240", 240),
    "timm cait_xxs24_224": small(timm, "cait_xxs24_224", depth=2),
    "timm volo_d1_224": small(timm, "volo_d1_224"),
    "timm hrnet_w18_small": small(timm, "hrnet_w18_small", 64),
    "timm dla34": small(timm, "dla34", 64),
    "timm repvgg_a0": small(timm, "repvgg_a0", 64),
    "timm tiny_vit_5m_224": small(timm, "tiny_vit_5m_224"),
    "timm halonet26t": small(timm, "halonet26t", 256),
    "transformers blip-2": blip2,
    "transformers siglip": small(two_towers, "siglip", TEXT, SEES),
    "transformers gemma3": small(
        speaking,
        "gemma3",
        {**GROUPED, "sliding_window": 16},
        {**SEES, "vision_use_head": False},
        250,
        4,
        lambda: {"pixel_values": images(32), "token_type_ids": torch.zeros(BATCH, LENGTH).long()},
        mm_tokens_per_image=4,
        image_token_index=250,
        boi_token_index=251,
        eoi_token_index=252,
    ),
    "transformers gemma4_text": small(language, "gemma4_text", **GROUPED, hidden_size_per_layer_input=8, vocab_size_per_layer_input=256),
    "transformers gemma3n_text": small(
        language,
        "gemma3n_text",
        **GROUPED,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=256,
        laurel_rank=8,
        num_kv_shared_layers=0,
        activation_sparsity_pattern=[0.0] * 2,
    ),
    "transformers qwen2_vl": small(qwen_vl, "qwen2_vl", mlp_ratio=2),
    "transformers qwen2_5_vl": small(qwen_vl, "qwen2_5_vl", fullatt_block_indexes=[1], window_size=16),
    "transformers qwen3_vl": small(qwen_vl, "qwen3_vl", deepstack_visual_indexes=[1], num_position_embeddings=64),
    "transformers phimoe": small(language, "phimoe", **ROUTED),
    "transformers olmo2": small(language, "olmo2", **kept(GROUPED, "head_dim")),
    "transformers olmoe": small(language, "olmoe", **kept(ROUTED, "head_dim", "num_local_experts")),
    "transformers qwen3_moe": small(language, "qwen3_moe", **kept(ROUTED, "num_local_experts")),
    "transformers qwen3_next": small(
        language,
        "qwen3_next",
        **kept(ROUTED, "num_local_experts"),
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        shared_expert_intermediate_size=32,
    ),
    "transformers granitemoe": small(language, "granitemoe", **kept(ROUTED, "head_dim", "num_experts")),
    "transformers granitemoehybrid": small(
        language,
        "granitemoehybrid",
        **kept(ROUTED, "head_dim", "num_experts"),
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_d_state=16,
        mamba_n_groups=1,
        mamba_chunk_size=16,
        shared_intermediate_size=64,
        layer_types=["mamba", "attention"],
    ),
    "transformers glm4_moe": small(
        language,
        "glm4_moe",
        **kept(ROUTED, "num_experts", "num_local_experts"),
        n_routed_experts=4,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        n_shared_experts=1,
    ),
    "transformers deepseek_v2": small(
        language,
        "deepseek_v2",
        **DEEP,
        **LATENT,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        n_group=1,
        topk_group=1,
        n_shared_experts=1,
        first_k_dense_replace=1,
    ),
    "transformers llama4_text": small(
        language,
        "llama4_text",
        **kept(ROUTED, "num_experts", "moe_intermediate_size"),
        intermediate_size_mlp=128,
        interleave_moe_layer_step=2,
        no_rope_layer_interval=4,
        attention_chunk_size=16,
    ),
    "transformers minimax": small(language, "minimax", **kept(ROUTED, "num_experts"), block_size=16),
    "transformers ernie4_5_moe": small(
        language,
        "ernie4_5_moe",
        **kept(ROUTED, "num_experts", "num_local_experts", "num_experts_per_tok"),
        moe_num_experts=4,
        moe_k=2,
    ),
    "transformers mamba": small(language, "mamba", num_hidden_layers=2, hidden_size=64, state_size=16, vocab_size=256),
    "transformers jamba": small(
        language, "jamba", **HYBRID, num_experts=4, num_experts_per_tok=2, mamba_dt_rank=8, use_mamba_kernels=False
    ),
    "transformers bamba": small(language, "bamba", **BIG_MAMBA, attn_layer_indices=[1]),
    "transformers zamba2": small(
        language,
        "zamba2",
        **DEEP,
        mamba_d_state=16,
        mamba_ngroups=1,
        n_mamba_heads=8,
        chunk_size=16,
        layers_block_type=["mamba", "hybrid"],
        num_mem_blocks=1,
        adapter_rank=8,
        num_key_value_heads=4,
    ),
    "transformers falcon_h1": small(language, "falcon_h1", **BIG_MAMBA, mamba_d_ssm=128),
    "transformers falcon_mamba": small(language, "falcon_mamba", num_hidden_layers=2, hidden_size=64, state_size=16, vocab_size=256),
    "transformers rwkv": small(
        language, "rwkv", num_hidden_layers=2, hidden_size=64, attention_hidden_size=64, vocab_size=256, context_length=64
    ),
    "transformers recurrent_gemma": small(language, "recurrent_gemma", **GROUPED, lru_width=64, attention_window_size=16),
    "transformers xlstm": small(
        language,
        "xlstm",
        num_hidden_layers=2,
        hidden_size=64,
        num_heads=4,
        vocab_size=256,
        chunk_size=16,
        ffn_round_up_to_multiple_of=16,
        mlstm_round_up_to_multiple_of=16,
    ),
    "transformers lfm2": small(language, "lfm2", **GROUPED, layer_types=["conv", "full_attention"], block_multiple_of=16),
    "transformers nemotron": small(language, "nemotron", **GROUPED),
    "transformers cohere2": small(language, "cohere2", **GROUPED, sliding_window=16),
    "transformers stablelm": small(language, "stablelm", **GROUPED),
    "transformers starcoder2": small(language, "starcoder2", **GROUPED),
    "transformers mpt": small(language, "mpt", d_model=64, n_heads=4, n_layers=2, max_seq_len=64, vocab_size=256),
    "transformers gptj": small(language, "gptj", n_embd=64, n_layer=2, n_head=4, rotary_dim=8, vocab_size=256, n_positions=64),
    "transformers codegen": small(
        language, "codegen", n_embd=64, n_layer=2, n_head=4, rotary_dim=8, vocab_size=256, n_positions=64, n_ctx=64
    ),
    "transformers modernbert": small(
        masked, "modernbert", global_attn_every_n_layers=2, local_attention=16, cls_token_id=1, sep_token_id=2
    ),
    "transformers longformer": small(masked, "longformer", 64, attention_window=16),
    "transformers big_bird": small(masked, "big_bird", 128, attention_type="block_sparse", block_size=8, num_random_blocks=2),
    "transformers electra": small(classifier, "electra", **DEEP, embedding_size=32),
    "transformers funnel": small(
        classifier,
        "funnel",
        block_sizes=[2, 2],
        d_model=64,
        n_head=4,
        d_head=16,
        d_inner=128,
        vocab_size=256,
        num_decoder_layers=1,
    ),
    "transformers mobilebert": small(
        classifier,
        "mobilebert",
        **DEEP,
        embedding_size=32,
        intra_bottleneck_size=32,
        num_feedforward_networks=2,
        true_hidden_size=32,
    ),
    "transformers xlnet": small(classifier, "xlnet", d_model=64, n_layer=2, n_head=4, d_inner=128, vocab_size=256),
    "transformers fnet": small(masked, "fnet"),
    "transformers pegasus_x": small(language, "pegasus_x", "AutoModelForSeq2SeqLM", **BOTH, block_size=16, num_global_tokens=8),
    "transformers led": small(language, "led", "AutoModelForSeq2SeqLM", **BOTH, attention_window=16),
    "transformers m2m_100": small(language, "m2m_100", "AutoModelForSeq2SeqLM", **BOTH),
    "transformers switch_transformers": small(
        language,
        "switch_transformers",
        "AutoModelForSeq2SeqLM",
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        vocab_size=256,
        num_experts=4,
        decoder_start_token_id=0,
        num_decoder_layers=2,
    ),
    "transformers t5gemma": small(
        language,
        "t5gemma",
        "AutoModelForSeq2SeqLM",
        encoder=GROUPED,
        decoder=GROUPED,
        vocab_size=256,
        decoder_start_token_id=0,
        bos_token_id=0,
    ),
    "transformers perceiver": perceiver,
    "transformers swin": small(
        vision, "swin", 64, image_size=64, patch_size=4, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4
    ),
    "transformers dinov2": small(vision, "dinov2", **SEES),
    "transformers convnext": small(vision, "convnext", 64, depths=[1, 1, 2, 1], hidden_sizes=[16, 32, 48, 64]),
    "transformers dpt": small(
        pictured,
        "dpt",
        lambda: {"pixel_values": images(32, 2), "labels": torch.zeros(2, 32, 32).long()},
        "AutoModelForSemanticSegmentation",
        None,
        **{**SEES, "num_hidden_layers": 4},  # the neck takes what four layers give
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 32, 32, 32],
        fusion_hidden_size=16,
        num_labels=4,
    ),
    "transformers detr": detr,
    "transformers sam": sam,
    "transformers timesformer": small(of_frames, "timesformer"),
    "transformers videomae": small(of_frames, "videomae", tubelet_size=2),
    "transformers vivit": small(of_frames, "vivit", tubelet_size=[2, 8, 8]),
    "transformers hubert": small(speech_of, "hubert", "AutoModelForAudioClassification"),
    "transformers wavlm": small(speech_of, "wavlm", "AutoModelForAudioClassification"),
    "transformers audio-spectrogram-transformer": small(
        pictured,
        "audio-spectrogram-transformer",
        lambda: {"input_values": torch.randn(2, 64, 16), "labels": torch.zeros(2).long()},
        "AutoModelForAudioClassification",
        None,
        **DEEP,
        patch_size=8,
        max_length=64,
        num_mel_bins=16,
        frequency_stride=8,
        time_stride=8,
    ),
    "transformers encodec": encodec,
    "transformers mimi": mimi,
    "transformers vits": vits,
    "transformers time_series_transformer": small(
        pictured,
        "time_series_transformer",
        lambda: {
            "past_values": torch.rand(BATCH, 23),
            "past_time_features": torch.rand(BATCH, 23, 2),
            "past_observed_mask": torch.ones(BATCH, 23),
            "future_values": torch.rand(BATCH, 8),
            "future_time_features": torch.rand(BATCH, 8, 2),
        },
        "AutoModel",
        lambda out: out[0].mean(),
        prediction_length=8,
        context_length=16,
        num_time_features=2,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
    ),
    "transformers patchtst": small(
        pictured,
        "patchtst",
        lambda: {"past_values": torch.rand(BATCH, 32, 3), "future_values": torch.rand(BATCH, 8, 3)},
        "PatchTSTForPrediction",
        None,
        num_input_channels=3,
        context_length=32,
        prediction_length=8,
        d_model=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=64,
        patch_length=4,
        patch_stride=4,
    ),
    "diffusers PixArtTransformer2DModel": pixart,
    "diffusers CogVideoXTransformer3DModel": cogvideo,
    "diffusers HunyuanVideoTransformer3DModel": hunyuan,
    "diffusers LTXVideoTransformer3DModel": ltx,
    "diffusers SanaTransformer2DModel": sana,
    "diffusers QwenImageTransformer2DModel": qwen_image,
    "diffusers AutoencoderKLWan": video_autoencoder,
    "diffusers ControlNetModel": controlled,
    "torchtitan llama3": small(titan, "llama3"),
    "torchtitan qwen3": small(titan, "qwen3"),
    "torchtitan deepseek_v3": small(titan, "deepseek_v3"),
    "torchtitan gpt_oss": small(titan, "gpt_oss"),
}
