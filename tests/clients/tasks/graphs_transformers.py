"""Forwards and three training steps in nn.Graph: Llama, Qwen3, GPT-2, Mixtral, BERT, T5, Mamba,
Whisper, ViT, CLIP, and LoRA of peft.
"""

from __future__ import annotations

from tests.clients.graph_steps import trained
from tests.clients.inputs import integers, numbers

PACKAGES = "transformers peft"
TIME_LIMIT_S = 600
REFUSED = {
    "task_mixtral_with_grouped_experts": "sizes that depend on values",
    "task_mixtral_with_eager_experts": "sizes that depend on values",
}

SMALL = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48,
}  # fmt: skip


def model_of(name, config_name, **options):
    import transformers

    return getattr(transformers, name)(getattr(transformers, config_name)(**options))


def words(torch):
    return torch.tensor(integers(53, 2, 8, low=3))


def language_model(torch, name, config_name, *, cached=False, **options):
    model = model_of(name, config_name, **options)
    return trained(torch, model, words(torch), pick=lambda out: out.logits, use_cache=cached)


def task_llama(torch):
    options = {**SMALL, "num_key_value_heads": 2}
    return language_model(torch, "LlamaForCausalLM", "LlamaConfig", **options)


def task_llama_with_cache(torch):
    options = {**SMALL, "num_key_value_heads": 2}
    return language_model(torch, "LlamaForCausalLM", "LlamaConfig", cached=True, **options)


def task_qwen3(torch):
    options = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
    return language_model(torch, "Qwen3ForCausalLM", "Qwen3Config", **options)


def task_gpt2(torch):
    options = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    return language_model(torch, "GPT2LMHeadModel", "GPT2Config", **options)


def mixtral(torch, experts):
    options = {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4}
    options["experts_implementation"] = experts
    return language_model(torch, "MixtralForCausalLM", "MixtralConfig", **options)


def task_mixtral_with_batched_experts(torch):
    return mixtral(torch, "batched_mm")


def task_mixtral_with_grouped_experts(torch):
    return mixtral(torch, "grouped_mm")


def task_mixtral_with_eager_experts(torch):
    return mixtral(torch, "eager")


def task_mamba(torch):
    options = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
    return language_model(torch, "MambaForCausalLM", "MambaConfig", **options)


def task_bert(torch):
    model = model_of("BertForMaskedLM", "BertConfig", **SMALL)
    return trained(torch, model, words(torch), pick=lambda out: out.logits)


def task_t5(torch):
    model = model_of(
        "T5ForConditionalGeneration", "T5Config", vocab_size=60, d_model=32, d_kv=8, d_ff=48,
        num_layers=2, num_heads=4, decoder_start_token_id=0,
    )  # fmt: skip
    given = words(torch)
    return trained(
        torch, model, given, pick=lambda out: out.logits, decoder_input_ids=given, use_cache=False
    )


def task_whisper(torch):
    model = model_of(
        "WhisperModel", "WhisperConfig", vocab_size=60, num_mel_bins=8, d_model=16,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=50, max_target_positions=40,
        pad_token_id=0,
    )  # fmt: skip
    return trained(
        torch, model, torch.tensor(numbers(2, 8, 100)), decoder_input_ids=words(torch),
        use_cache=False, pick=lambda out: out.last_hidden_state,
    )  # fmt: skip


PICTURES = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


def task_vit(torch):
    model = model_of("ViTModel", "ViTConfig", **PICTURES)
    x = torch.tensor(numbers(2, 3, 32, 32))
    return trained(torch, model, x, pick=lambda out: out.last_hidden_state)


def task_clip(torch):
    text = {**SMALL, "num_hidden_layers": 1, "eos_token_id": 3}
    options = {"text_config": text, "vision_config": PICTURES, "projection_dim": 16}
    model = model_of("CLIPModel", "CLIPConfig", **options)
    x = torch.tensor(numbers(2, 3, 32, 32))
    return trained(torch, model, words(torch), x, pick=lambda out: out.logits_per_image)


def task_lora(torch):
    from peft import LoraConfig, get_peft_model

    llama = model_of("LlamaForCausalLM", "LlamaConfig", **SMALL, num_key_value_heads=2)
    model = get_peft_model(llama, LoraConfig(task_type="CAUSAL_LM", r=4))
    return trained(torch, model, words(torch), pick=lambda out: out.logits, use_cache=False)
