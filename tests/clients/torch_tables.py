"""Tables of the small models that torch_names.py runs: one row an architecture."""

from __future__ import annotations

from typing import Any

WORDS = 99
"""Number of words of each language model."""

TEXT: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 37,
}  # fmt: skip
_GROUPED = TEXT | {"num_key_value_heads": 2}
_MIXED = _GROUPED | {"num_local_experts": 4, "experts_implementation": "eager"}
_SPEECH = {
    "vocab_size": WORDS, "num_mel_bins": 8, "d_model": 16, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "max_source_positions": 10,
    "max_target_positions": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
_PICTURE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 30}
_PATCHES = _PICTURE | {"intermediate_size": 37, "patch_size": 5}

TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "mistral": ("mistral", "MistralForCausalLM", _GROUPED | {"sliding_window": 4}, "words"),
    "mixtral": ("mixtral", "MixtralForCausalLM", _MIXED, "words"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", _GROUPED, "words"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", _GROUPED | {"head_dim": 8}, "words"),
    "gemma": ("gemma", "GemmaForCausalLM", _GROUPED | {"head_dim": 8}, "words"),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", _GROUPED | {"head_dim": 8}, "words"),
    "phi3": ("phi3", "Phi3ForCausalLM", _GROUPED | {"pad_token_id": 0}, "words"),
    "falcon": ("falcon", "FalconForCausalLM", TEXT, "words"),
    "gpt_neox": ("gpt_neox", "GPTNeoXForCausalLM", TEXT, "words"),
    "gptj": (
        "gptj",
        "GPTJForCausalLM",
        {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
        "words",
    ),
    "opt": (
        "opt",
        "OPTForCausalLM",
        TEXT | {"ffn_dim": 37, "word_embed_proj_dim": 16, "max_position_embeddings": 20},
        "words",
    ),
    "bloom": (
        "bloom",
        "BloomForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        "words",
    ),
    "roberta": ("roberta", "RobertaForMaskedLM", TEXT, "masked"),
    "deberta": (
        "deberta",
        "DebertaForMaskedLM",
        TEXT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        "masked",
    ),
    "deberta_v2": (
        "deberta_v2",
        "DebertaV2ForMaskedLM",
        TEXT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        "masked",
    ),
    "distilbert": (
        "distilbert",
        "DistilBertForMaskedLM",
        {"vocab_size": WORDS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37},
        "masked",
    ),
    "electra": ("electra", "ElectraModel", TEXT | {"embedding_size": 16}, "masked"),
    "albert": ("albert", "AlbertModel", TEXT | {"embedding_size": 16}, "masked"),
    "bart": (
        "bart",
        "BartForConditionalGeneration",
        {k: v for k, v in _SPEECH.items() if "suppress" not in k}
        | {"max_position_embeddings": 20, "forced_eos_token_id": None},
        "both",
    ),
    "whisper": ("whisper", "WhisperForConditionalGeneration", _SPEECH, "sound"),
    "clip": (
        "clip",
        "CLIPModel",
        {"text_config": TEXT, "vision_config": _PATCHES, "projection_dim": 16},
        "pair",
    ),
    "siglip": ("siglip", "SiglipModel", {"text_config": TEXT, "vision_config": _PATCHES}, "pair"),
    "dinov2": ("dinov2", "Dinov2Model", _PICTURE | {"patch_size": 5}, "picture"),
    "swinv2": (
        "swinv2",
        "Swinv2Model",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2],
         "num_heads": [2, 4], "window_size": 4},
        "picture",
    ),
    "convnext": (
        "convnext",
        "ConvNextModel",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]},
        "picture",
    ),
    "segformer": (
        "segformer",
        "SegformerForSemanticSegmentation",
        {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32],
         "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16},
        "picture",
    ),
    "wav2vec2": (
        "wav2vec2",
        "Wav2Vec2Model",
        TEXT | {"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3),
                "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2},
        "wave",
    ),
}  # fmt: skip
"""Architectures of transformers: package, class, options of its configuration, input."""

_ATTENTION = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2}
_BLOCKS = {"block_out_channels": (32, 64), "layers_per_block": 1, "sample_size": 16}

DIFFUSERS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "sd3": (
        "transformers.transformer_sd3",
        "SD3Transformer2DModel",
        _ATTENTION | {
            "sample_size": 8, "patch_size": 2, "in_channels": 4, "out_channels": 4,
            "joint_attention_dim": 32, "caption_projection_dim": 16, "pooled_projection_dim": 24,
            "pos_embed_max_size": 8, "qk_norm": "rms_norm", "dual_attention_layers": (0,),
        },
        {"hidden_states": (2, 4, 8, 8), "encoder_hidden_states": (2, 7, 32),
         "pooled_projections": (2, 24), "timestep": [10, 500]},
    ),
    "flux": (
        "transformers.transformer_flux",
        "FluxTransformer2DModel",
        _ATTENTION | {
            "patch_size": 1, "in_channels": 4, "num_single_layers": 2, "guidance_embeds": True,
            "joint_attention_dim": 32, "pooled_projection_dim": 24, "axes_dims_rope": (2, 2, 4),
        },
        {"hidden_states": (2, 16, 4), "encoder_hidden_states": (2, 7, 32),
         "pooled_projections": (2, 24), "timestep": [0.1, 0.5], "guidance": [1.5, 3.0],
         "img_ids": (16, 3), "txt_ids": (7, 3)},
    ),
    "dit": (
        "transformers.dit_transformer_2d",
        "DiTTransformer2DModel",
        _ATTENTION | {"sample_size": 8, "in_channels": 4, "out_channels": 8, "norm_eps": 1e-5},
        {"hidden_states": (2, 4, 8, 8), "timestep": [10, 500], "class_labels": [1, 999]},
    ),
    "pixart": (
        "transformers.pixart_transformer_2d",
        "PixArtTransformer2DModel",
        _ATTENTION | {
            "sample_size": 8, "in_channels": 4, "out_channels": 8, "cross_attention_dim": 16,
            "caption_channels": 32, "use_additional_conditions": False,
        },
        {"hidden_states": (2, 4, 8, 8), "timestep": [10, 500],
         "encoder_hidden_states": (2, 7, 32),
         "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}},
    ),
    "prior": (
        "transformers.prior_transformer",
        "PriorTransformer",
        _ATTENTION | {"embedding_dim": 16, "num_embeddings": 7, "additional_embeddings": 4},
        {"hidden_states": (2, 16), "timestep": [10, 500], "proj_embedding": (2, 16),
         "encoder_hidden_states": (2, 7, 16)},
    ),
    "transformer": (
        "transformers.transformer_2d",
        "Transformer2DModel",
        _ATTENTION | {"in_channels": 32, "cross_attention_dim": 24, "norm_type": "layer_norm"},
        {"hidden_states": (2, 32, 8, 8), "encoder_hidden_states": (2, 7, 24)},
    ),
    "controlnet": (
        "controlnets.controlnet",
        "ControlNetModel",
        {"in_channels": 4, "layers_per_block": 1, "block_out_channels": (32, 64),
         "cross_attention_dim": 32, "attention_head_dim": 8,
         "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
         "conditioning_embedding_out_channels": (16, 32)},
        {"sample": (2, 4, 16, 16), "timestep": [10, 500], "encoder_hidden_states": (2, 7, 32),
         "controlnet_cond": (2, 3, 32, 32)},
    ),
    "unet2d": (
        "unets.unet_2d",
        "UNet2DModel",
        _BLOCKS | {
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "attention_head_dim": 8,
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        {"sample": (2, 3, 16, 16), "timestep": [10, 500]},
    ),
    "vq": (
        "autoencoders.vq_model",
        "VQModel",
        _BLOCKS | {
            "down_block_types": ("DownEncoderBlock2D",) * 2, "num_vq_embeddings": 24,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        {"sample": (2, 3, 16, 16)},
    ),
    "tiny_autoencoder": (
        "autoencoders.autoencoder_tiny",
        "AutoencoderTiny",
        {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16),
         "num_encoder_blocks": (1, 2), "num_decoder_blocks": (2, 1)},
        {"sample": (2, 3, 16, 16)},
    ),
}  # fmt: skip
"""Models of diffusers: module, class, configuration, shapes or values of its arguments."""

TORCHVISION: dict[str, int] = {
    "resnet18": 64, "mobilenet_v3_small": 64, "vit_b_32": 224, "alexnet": 64, "vgg11_bn": 32,
    "squeezenet1_1": 64, "densenet121": 64, "googlenet": 64, "inception_v3": 80,
    "shufflenet_v2_x0_5": 64, "mobilenet_v2": 64, "mobilenet_v3_large": 64,
    "resnext50_32x4d": 64, "wide_resnet50_2": 64, "efficientnet_b0": 64,
    "efficientnet_v2_s": 64, "regnet_x_400mf": 64, "regnet_y_400mf": 64, "convnext_tiny": 64,
    "swin_t": 64, "swin_v2_t": 64, "maxvit_t": 224, "segmentation.fcn_resnet50": 64,
    "segmentation.lraspp_mobilenet_v3_large": 64,
    "segmentation.deeplabv3_mobilenet_v3_large": 64,
}  # fmt: skip
"""Models of torchvision, and the edge of the image that each is given."""

_AT_64 = (
    "resnet18 mobilenetv3_small_050 efficientnet_b0 convnext_atto regnety_002 regnetx_002 "
    "mobilenetv2_035 mobilevit_xxs mobileone_s0 ghostnet_050 tinynet_e lcnet_050 mnasnet_small "
    "hardcorenas_a ese_vovnet19b_dw skresnet18 dla34 edgenext_xx_small repvgg_a0 "
    "hrnet_w18_small poolformer_s12 resnet26d seresnet18 fastvit_t8"
)
_AT_224 = (
    "swin_tiny_patch4_window7_224 mixer_s32_224 levit_128s pit_ti_224 xcit_nano_12_p16_224 "
    "resmlp_12_224 gmlp_ti16_224 cait_xxs24_224 efficientformer_l1 coat_tiny"
)

TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "vit_tiny_patch16_224": (64, {"img_size": 64}),
    "deit_tiny_patch16_224": (64, {"img_size": 64}),
    **dict.fromkeys(_AT_64.split(), (64, {})),
    **dict.fromkeys(_AT_224.split(), (224, {})),
}
"""Models of timm, the edge of the image, and options."""
