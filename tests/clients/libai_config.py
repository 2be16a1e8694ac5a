"""A configuration of LiBai's DefaultTrainer: a small GPT on an indexed data set of made-up text.

LiBai reads such a file by itself; `libai_trainer.py` fills in paths, sizes and switches.
"""

from __future__ import annotations

from libai.config import LazyCall
from libai.data.build import build_nlp_train_val_test_loader
from libai.data.data_utils import get_indexed_dataset
from libai.data.datasets import GPT2Dataset
from libai.models.gpt_model import GPTForPreTraining
from libai.models.utils import GraphBase
from libai.optim import get_default_optimizer_params
from libai.scheduler import WarmupCosineLR
from omegaconf import OmegaConf

import oneflow as flow

model = LazyCall(GPTForPreTraining)(
    cfg={
        "num_layers": 4, "vocab_size": 64, "hidden_size": 32, "ffn_hidden_size": 64,
        "num_attention_heads": 4, "max_seq_length": 16, "embedding_dropout_prob": 0.1,
        "attention_dropout_prob": 0.1, "output_dropout_prob": 0.1, "layernorm_epsilon": 1e-5,
        "initializer_range": 0.02, "use_scaled_init_for_output_weights": True,
        "bias_gelu_fusion": True, "bias_dropout_fusion": True, "scale_mask_softmax_fusion": True,
        "apply_query_key_layer_scaling": True, "apply_residual_post_layernorm": False,
        "amp_enabled": False,
    }
)  # fmt: skip

optim = LazyCall(flow.optim.AdamW)(
    params=LazyCall(get_default_optimizer_params)(
        clip_grad_max_norm=1.0,
        clip_grad_norm_type=2.0,
        weight_decay_norm=0.0,
        weight_decay_bias=0.0,
    ),
    lr=1e-2,
    weight_decay=0.01,
    betas=(0.9, 0.999),
    eps=1e-8,
    do_bias_correction=True,
)

dataloader = OmegaConf.create({"consumed_samples": 0})
dataloader.train = LazyCall(build_nlp_train_val_test_loader)(
    dataset=[
        LazyCall(GPT2Dataset)(
            tokenizer=None,
            data_prefix="",
            indexed_dataset=LazyCall(get_indexed_dataset)(
                data_prefix="", data_impl="mmap", skip_warmup=False
            ),
            max_seq_length=16,
        )
    ],
    splits=[[0.8, 0.1, 0.1]],
    weights=[1.0],
    num_workers=0,
    consumed_samples="${dataloader.consumed_samples}",  # the trainer says how many, beside `train`
)

graph = {
    "enabled": True,
    "debug": -1,
    "train_graph": LazyCall(GraphBase)(is_train=True),
    "eval_graph": LazyCall(GraphBase)(is_train=False),
}

train = {
    "output_dir": "",
    "train_micro_batch_size": 4,
    "num_accumulation_steps": 1,
    "train_iter": 6,
    "train_epoch": 0,
    "warmup_ratio": 0.3,
    "test_micro_batch_size": 4,
    "seed": 7,
    "log_period": 1,
    "resume": False,
    "load_weight": "",
    "amp": {"enabled": False},
    "activation_checkpoint": {"enabled": False},
    "zero_optimization": {"enabled": False, "stage": 1},
    "checkpointer": {"period": 3, "max_to_keep": 5},
    "evaluation": {"enabled": False},  # of LiBai moves what it compares to GPU 0
    "scheduler": LazyCall(WarmupCosineLR)(warmup_factor=0.001, alpha=0.01, warmup_method="linear"),
    "dist": {
        "data_parallel_size": 1,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "pipeline_num_layers": 4,
    },
}
