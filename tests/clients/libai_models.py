"""Models of LiBai trained for some steps, eagerly or as a graph, on one rank or several.

`python -m oneflow.distributed.launch --nproc_per_node N -m tests.clients.libai_models MODEL MODE
DATA TENSOR PIPELINE` prints the losses of the steps from the last rank, which has them.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np

import oneflow as flow

vars(np)["float"] = float  # a name that LiBai reads and NumPy 1.24 dropped

STEPS = 4
BATCH = 4
LENGTH = 8
WORDS = 64


def _text(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": WORDS, "hidden_size": 32, "num_attention_heads": 4, "ffn_hidden_size": 64,
        "embedding_dropout_prob": 0.0, "attention_dropout_prob": 0.0, "output_dropout_prob": 0.0,
        **more,
    }  # fmt: skip


def usual_config(options: dict[str, Any]) -> Any:
    """The options with LiBai's usual values of all others."""
    from omegaconf import DictConfig

    usual = {
        "layernorm_epsilon": 1e-5, "layernorm_eps": 1e-5, "initializer_range": 0.02,
        "use_scaled_init_for_output_weights": True, "add_pooling_layer": True,
        "bias_gelu_fusion": True, "bias_dropout_fusion": True, "scale_mask_softmax_fusion": True,
        "apply_query_key_layer_scaling": True, "add_binary_head": True, "amp_enabled": False,
    }  # fmt: skip
    return DictConfig({**usual, **options})


def gpt() -> Any:
    from libai.models.gpt_model import GPTForPreTraining

    return GPTForPreTraining(usual_config(_text(num_layers=2, max_seq_length=LENGTH)))


def bert() -> Any:
    from libai.models.bert_model import BertForPreTraining

    options = {
        "vocab_size": WORDS, "hidden_size": 16, "hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": LENGTH, "num_tokentypes": 2,
    }  # fmt: skip
    return BertForPreTraining(usual_config(options))


def t5() -> Any:
    from libai.models.t5_model import T5ForPreTraining

    options = {
        "vocab_size": WORDS, "hidden_size": 16, "hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "embedding_dropout_prob": 0.0, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "max_position_embeddings": LENGTH,
    }  # fmt: skip
    return T5ForPreTraining(usual_config(options))


def vit() -> Any:
    from libai.models.vision_transformer import VisionTransformer

    options = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    return VisionTransformer(**options, num_classes=10, loss_func=flow.nn.CrossEntropyLoss())


def swin() -> Any:
    from libai.models.swin_transformer import SwinTransformer

    options = {"img_size": 32, "patch_size": 2, "embed_dim": 8, "window_size": 4}
    return SwinTransformer(
        **options,
        depths=[2, 2],
        num_heads=[2, 2],
        num_classes=10,
        drop_path_rate=0.0,
        loss_func=flow.nn.CrossEntropyLoss(),
    )


def roberta() -> Any:
    """RoBERTa of LiBai's main branch, which the package index does not have."""
    from libai.models.roberta_model import RobertaForPreTraining

    options = {
        "vocab_size": WORDS, "hidden_size": 16, "hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": LENGTH, "num_tokentypes": 1, "pad_token_id": 1,
        "apply_residual_post_layernorm": False,
    }  # fmt: skip
    return RobertaForPreTraining(usual_config(options))


def resmlp() -> Any:
    """ResMLP of LiBai's main branch."""
    from libai.models.resmlp import ResMLP

    options = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2}
    return ResMLP(**options, num_classes=10, loss_func=flow.nn.CrossEntropyLoss())


def swin_v2() -> Any:
    """Swin v2 of LiBai's main branch: its stages are those of a pipeline."""
    from libai.models.swin_transformer_v2 import SwinTransformerV2

    options = {"img_size": 32, "patch_size": 2, "embed_dim": 8, "window_size": 4}
    return SwinTransformerV2(
        **options,
        depths=[2, 2],
        num_heads=[2, 2],
        num_classes=10,
        drop_path_rate=0.0,
        loss_func=flow.nn.CrossEntropyLoss(),
    )


LAYERS = {"t5": 4, "swin_v2": 4}
"""Number of layers that LiBai lays out over the stages, where it is not two."""


def _ids(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, WORDS, (BATCH, LENGTH))


def inputs_of(name: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Arguments of a model in training."""
    ones = np.ones((BATCH, LENGTH), np.int64)
    square = np.ones((BATCH, LENGTH, LENGTH), np.int64)
    if name == "gpt":
        return {"input_ids": _ids(rng), "labels": _ids(rng)}
    if name == "bert":
        return {
            "input_ids": _ids(rng), "attention_mask": ones, "tokentype_ids": 0 * ones,
            "ns_labels": rng.integers(0, 2, BATCH), "lm_labels": _ids(rng), "loss_mask": ones,
        }  # fmt: skip
    if name == "roberta":
        return {
            "input_ids": _ids(rng), "attention_mask": ones, "lm_labels": _ids(rng),
            "loss_mask": ones,
        }  # fmt: skip
    if name == "t5":
        return {
            "encoder_input_ids": _ids(rng), "decoder_input_ids": _ids(rng),
            "encoder_attn_mask": square, "decoder_attn_mask": np.tril(square),
            "encoder_decoder_attn_mask": square, "lm_labels": _ids(rng), "loss_mask": ones,
        }  # fmt: skip
    images = rng.standard_normal((BATCH, 3, 32, 32)).astype(np.float32)
    return {"images": images, "labels": rng.integers(0, 10, BATCH)}


def to_global(dist: Any, values: dict[str, np.ndarray]) -> dict[str, Any]:
    """Global tensors as LiBai's data loaders make them: the batch split over the data groups."""
    sbp = dist.get_nd_sbp([flow.sbp.split(0), flow.sbp.broadcast])
    late = {"labels", "lm_labels", "loss_mask", "ns_labels"}
    return {
        name: flow.tensor(
            array, placement=dist.get_layer_placement(-1 if name in late else 0), sbp=sbp
        )
        for name, array in values.items()
    }


def first_weights(model: Any, rng: np.random.Generator) -> None:
    """Values that do not depend on the layout."""
    for _, parameter in sorted(model.named_parameters(), key=lambda pair: pair[0]):
        values = (rng.standard_normal(tuple(parameter.shape)) * 0.1).astype(np.float32)
        whole = [flow.sbp.broadcast] * len(parameter.sbp)
        whole = flow.tensor(values, placement=parameter.placement, sbp=whole)
        parameter.data.copy_(whole.to_global(sbp=parameter.sbp))


def losses_of(name: str, mode: str, sizes: tuple[int, int, int]) -> list[float]:
    """The loss of each step.  sizes: of the data, tensor and pipeline parallel groups."""
    from libai.models.utils.graph_base import GraphBase
    from libai.utils import distributed as dist
    from omegaconf import DictConfig

    data, tensor, pipeline = sizes
    dist.setup_dist_util(
        DictConfig(
            {
                "data_parallel_size": data,
                "tensor_parallel_size": tensor,
                "pipeline_parallel_size": pipeline,
                "pipeline_num_layers": LAYERS.get(name, 2),
            }
        )
    )
    rng = np.random.default_rng(0)
    model = globals()[name]()
    first_weights(model, rng)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    batch = to_global(dist, inputs_of(name, rng))
    graph = None
    if mode == "graph":
        graph = GraphBase(model, optimizer, flow.optim.lr_scheduler.StepLR(optimizer, 1000))
    found = []
    for _ in range(STEPS):
        if graph is not None:
            out = graph(**batch)
        else:
            out = model(**batch)
            sum(out.values()).backward()
            optimizer.step()
            optimizer.zero_grad()
        arrays = [dist.tton(loss) for loss in out.values()]
        found.append(sum(float(a.mean()) if a.size else math.nan for a in arrays))
    return found


if __name__ == "__main__":
    name, mode, *sizes = sys.argv[1:]
    losses = losses_of(name, mode, tuple(int(s) for s in sizes))
    if flow.env.get_rank() == flow.env.get_world_size() - 1:
        print(json.dumps({"model": name, "mode": mode, "sizes": sizes, "losses": losses}))
