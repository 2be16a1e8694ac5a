"""Three training steps of mixtures of experts with their default experts: Mixtral, Qwen3 MoE,
DeepSeek V3, OLMoE, GPT-OSS; and with batched and eager ones.
"""

from __future__ import annotations

from tests.clients.inputs import fill, integers

PACKAGES = "transformers"

SMALL = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "num_key_value_heads": 2,
}  # fmt: skip


def trained(torch, name, config_name, **options):
    import transformers

    config = getattr(transformers, config_name)(**{**SMALL, **options})
    model = fill(getattr(transformers, name)(config))
    words = torch.tensor(integers(57, 2, 8, low=3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        out = model(input_ids=words, labels=words, use_cache=False)
        out.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses += [out.loss.item(), norm.item()]
    return {"losses": losses, "logits": out.logits}


def task_mixtral(torch):
    return trained(torch, "MixtralForCausalLM", "MixtralConfig", num_local_experts=4)


def task_mixtral_with_other_experts(torch):
    return {
        kind: trained(
            torch, "MixtralForCausalLM", "MixtralConfig", num_local_experts=4,
            experts_implementation=kind,
        )
        for kind in ("eager", "batched_mm")
    }  # fmt: skip


def task_qwen3_moe(torch):
    options = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    return trained(torch, "Qwen3MoeForCausalLM", "Qwen3MoeConfig", head_dim=8, **options)


def task_olmoe(torch):
    return trained(torch, "OlmoeForCausalLM", "OlmoeConfig", num_experts=4, num_experts_per_tok=2)


def task_gpt_oss(torch):
    options = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}
    return trained(torch, "GptOssForCausalLM", "GptOssConfig", head_dim=8, **options)


def task_deepseek_v3(torch):
    return trained(
        torch, "DeepseekV3ForCausalLM", "DeepseekV3Config", num_key_value_heads=4,
        moe_intermediate_size=16, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
        n_group=2, topk_group=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
    )  # fmt: skip
