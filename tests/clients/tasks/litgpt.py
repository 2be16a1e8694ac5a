"""GPT of a Llama form and of GPT-NeoX's: training with chunked loss, KV cache generation, LoRA."""

from __future__ import annotations

from tests.clients.inputs import fill, integers

PACKAGES = "litgpt"
TIME_LIMIT_S = 600


def config_of(**options):
    from litgpt import Config

    return Config(
        block_size=32, vocab_size=60, padded_vocab_size=64, n_layer=2, n_head=4, n_embd=32,
        **options,
    )  # fmt: skip


LLAMA = {
    "n_query_groups": 2, "rotary_percentage": 1.0, "parallel_residual": False, "bias": False,
    "norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP", "intermediate_size": 48,
}  # fmt: skip


def trained(torch, model):
    from litgpt.utils import chunked_cross_entropy

    words = torch.tensor(integers(60, 2, 17))
    chosen = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for _ in range(3):
        logits = model(words[:, :-1], lm_head_chunk_size=8)
        loss = chunked_cross_entropy(logits, words[:, 1:], chunk_size=8)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def made(torch, model):
    from litgpt.generate.base import generate

    model.eval()
    with torch.inference_mode():
        model.set_kv_cache(batch_size=1)
        words = torch.tensor(integers(60, 6))
        found = generate(model, words, 14, temperature=0.0, top_k=None)
        model.clear_kv_cache()
    return found


def task_llama(torch):
    from litgpt import GPT

    model = fill(GPT(config_of(**LLAMA)))
    return {"losses": trained(torch, model), "made": made(torch, fill(model, scale=2.0))}


def task_neox(torch):
    from litgpt import GPT

    model = fill(GPT(config_of(rotary_percentage=0.25, parallel_residual=True)))
    return {"losses": trained(torch, model), "made": made(torch, fill(model, scale=2.0))}


def task_lora(torch):
    from litgpt.lora import GPT, Config, mark_only_lora_as_trainable, merge_lora_weights

    config = Config(
        block_size=32, vocab_size=60, padded_vocab_size=64, n_layer=2, n_head=4, n_embd=32,
        lora_r=4, lora_alpha=8, lora_query=True, lora_value=True, lora_projection=True, **LLAMA,
    )  # fmt: skip
    model = fill(GPT(config))
    mark_only_lora_as_trainable(model)
    losses = trained(torch, model)
    words = torch.tensor(integers(60, 2, 8))
    model.eval()
    before = model(words)
    merge_lora_weights(model)
    return {"losses": losses, "before": before, "merged": model(words)}
