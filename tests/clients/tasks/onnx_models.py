"""Models written as ONNX for any batch, and run by onnxruntime: ten of transformers, fourteen of
timm, two of diffusers.
"""

from __future__ import annotations

from tests.clients.graph_steps import tensors_of
from tests.clients.inputs import fill, integers, is_library, numbers

PACKAGES = "transformers timm torchvision diffusers onnx onnxruntime"
TIME_LIMIT_S = 1200

SMALL = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48,
}  # fmt: skip
PICTURES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


def told(outputs):
    return {f"output {i}": x for i, x in enumerate(outputs)}


def results(torch, model, *inputs, batched=(0,), **options):
    """The outputs of a model: of PyTorch as it is, of the library as ONNX in onnxruntime."""
    fill(model).eval()
    given = [torch.tensor(x) for x in inputs]
    if not is_library(torch):
        with torch.no_grad():
            return told([x.numpy() for x in tensors_of(model(*given, **options))])
    import onnxruntime

    import oneflow

    names = [f"x{i}" for i in range(len(given))]
    made = oneflow.onnx.export(
        model, tuple(given), kwargs=options, input_names=names,
        dynamic_axes={names[i]: {0: "batch"} for i in batched},
    )  # fmt: skip
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found = session.run(None, dict(zip(names, inputs, strict=True)))
    return told([x for x in found if x.dtype.kind == "f"])


def transformer(torch, name, config, *inputs, **options):
    import transformers

    model = getattr(transformers, name)(getattr(transformers, config)(**options))
    given = inputs or (integers(57, 2, 8, low=3),)
    caches = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    return results(torch, model, *given, **caches)


def task_bert(torch):
    return transformer(torch, "BertModel", "BertConfig", **SMALL)


def task_roberta(torch):
    return transformer(torch, "RobertaModel", "RobertaConfig", **SMALL)


def task_gpt2(torch):
    sizes = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    return transformer(torch, "GPT2LMHeadModel", "GPT2Config", **sizes)


def task_llama(torch):
    return transformer(torch, "LlamaForCausalLM", "LlamaConfig", **SMALL, num_key_value_heads=2)


def task_qwen2(torch):
    return transformer(torch, "Qwen2ForCausalLM", "Qwen2Config", **SMALL, num_key_value_heads=2)


def task_t5_encoder(torch):
    sizes = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2}
    return transformer(torch, "T5EncoderModel", "T5Config", **sizes, num_heads=4)


def task_vit(torch):
    return transformer(torch, "ViTModel", "ViTConfig", numbers(2, 3, 32, 32), **PICTURES)


def task_clip(torch):
    image = numbers(2, 3, 32, 32)
    return transformer(torch, "CLIPVisionModel", "CLIPVisionConfig", image, **PICTURES)


def task_swin(torch):
    sizes = {"embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "image_size": 32}
    return transformer(torch, "SwinModel", "SwinConfig", numbers(2, 3, 32, 32), **sizes,
                       patch_size=2, window_size=4)  # fmt: skip


def task_convnext(torch):
    sizes = {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 2, 1]}
    return transformer(torch, "ConvNextModel", "ConvNextConfig", numbers(2, 3, 64, 64), **sizes)


def of_timm(torch, *names):
    import timm

    x = numbers(2, 3, 64, 64)
    return {n: results(torch, timm.create_model(n, num_classes=5), x)["output 0"] for n in names}


def task_timm_residual(torch):
    return of_timm(torch, "resnet10t", "seresnet18", "dla34", "densenet121", "repvgg_a0")


def task_timm_mobile(torch):
    return of_timm(torch, "mobilenetv2_050", "mobilenetv3_small_050", "efficientnet_b0",
                   "mnasnet_small", "ghostnet_050", "regnetx_002")  # fmt: skip


def task_timm_mixed(torch):
    return of_timm(torch, "edgenext_xx_small", "mobilevit_xxs", "poolformer_s12")


def task_unet(torch):
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), cross_attention_dim=16,
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), attention_head_dim=8,
    )  # fmt: skip
    given = numbers(2, 4, 8, 8), integers(10), numbers(2, 5, 16)
    return results(torch, model, *given, batched=(0, 2), return_dict=False)


def task_autoencoder(torch):
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(32, 64), norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    return results(torch, model, numbers(1, 3, 16, 16), return_dict=False)
