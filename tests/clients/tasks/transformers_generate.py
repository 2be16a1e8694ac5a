"""generate: greedy with and without cache, beams, penalties, scores, sampling for nine families;
left padding, static cache, streamer and stopping, assisted, Whisper.
"""

from __future__ import annotations

import numpy as np

from tests.clients.inputs import fill, integers, numbers

PACKAGES = "transformers"
TIME_LIMIT_S = 600

SMALL = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
NAMED = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def model_of(name, config_name, **options):
    import transformers

    config = getattr(transformers, config_name)(**options)
    return fill(getattr(transformers, name)(config), scale=2.0).eval()


def llama(**options):
    return model_of("LlamaForCausalLM", "LlamaConfig", **SMALL, num_key_value_heads=2, **options)


def prompt(torch):
    words = torch.tensor(integers(60, 2, 7, low=3))
    return {"input_ids": words, "attention_mask": torch.ones_like(words)}


def ways(torch, model):
    """Values of one model in six ways of generating."""
    common = {**prompt(torch), "max_new_tokens": 10, "min_new_tokens": 4}
    scored = model.generate(
        **common, do_sample=False, return_dict_in_generate=True, output_scores=True
    )
    sampled = model.generate(**common, do_sample=True, top_k=10, top_p=0.9, temperature=0.7)
    return {
        "greedy": model.generate(**common, do_sample=False),
        "without cache": model.generate(**common, do_sample=False, use_cache=False),
        "beams": model.generate(**common, do_sample=False, num_beams=3),
        "penalties": model.generate(
            **common, do_sample=False, repetition_penalty=1.3, no_repeat_ngram_size=2
        ),
        "scores": torch.stack(scored.scores)[:4].clamp(-30, 30),
        "rows": sampled.shape[0],
    }


def task_llama(torch):
    return ways(torch, llama())


def task_qwen2(torch):
    return ways(torch, model_of("Qwen2ForCausalLM", "Qwen2Config", **SMALL, num_key_value_heads=2))


def task_gpt2(torch):
    return ways(
        torch,
        model_of(
            "GPT2LMHeadModel", "GPT2Config", **NAMED, n_embd=32, n_layer=2, n_head=4, n_positions=64
        ),
    )


def task_t5(torch):
    return ways(
        torch,
        model_of(
            "T5ForConditionalGeneration", "T5Config", vocab_size=60, d_model=32, d_kv=8, d_ff=48,
            num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0, eos_token_id=2,
        ),
    )  # fmt: skip


def task_bart(torch):
    return ways(
        torch,
        model_of(
            "BartForConditionalGeneration", "BartConfig", **NAMED, d_model=32, encoder_layers=1,
            decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=32, decoder_ffn_dim=32, decoder_start_token_id=2,
            max_position_embeddings=64, forced_eos_token_id=None,
        ),
    )  # fmt: skip


def task_gemma3(torch):
    return ways(
        torch,
        model_of(
            "Gemma3ForCausalLM", "Gemma3TextConfig", **SMALL, num_key_value_heads=2, head_dim=8,
            sliding_window=8, layer_types=["sliding_attention", "full_attention"],
        ),
    )  # fmt: skip


def task_mamba(torch):
    return ways(
        torch,
        model_of(
            "MambaForCausalLM", "MambaConfig", **NAMED, hidden_size=32, num_hidden_layers=2,
            state_size=4,
        ),
    )  # fmt: skip


def task_mixtral(torch):
    return ways(
        torch,
        model_of(
            "MixtralForCausalLM", "MixtralConfig", **SMALL, num_key_value_heads=2,
            num_local_experts=4,
        ),
    )  # fmt: skip


def task_deepseek_v3(torch):
    return ways(
        torch,
        model_of(
            "DeepseekV3ForCausalLM", "DeepseekV3Config", **SMALL, num_key_value_heads=4,
            moe_intermediate_size=16, n_routed_experts=4, n_shared_experts=1,
            num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
            q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        ),
    )  # fmt: skip


def task_left_padding(torch):
    given = prompt(torch)
    given["input_ids"][0, :3] = 0
    given["attention_mask"] = (given["input_ids"] != 0).long()
    return {"words": llama().generate(**given, max_new_tokens=8, do_sample=False)}


def task_static_cache(torch):
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": "static"}
    found = llama().generate(**prompt(torch), **options, disable_compile=True)
    return {"words": found}


def task_streamer_stopping_processor(torch):
    from transformers import (
        LogitsProcessor,
        LogitsProcessorList,
        StoppingCriteria,
        StoppingCriteriaList,
    )

    class Twelve(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.full((input_ids.shape[0],), input_ids.shape[1] > 12, dtype=torch.bool)

    class NeverFive(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores = scores.clone()
            scores[:, 5] = -float("inf")
            return scores

    class Streamer:
        seen: list[np.ndarray] = []

        def put(self, value):
            self.seen.append(np.asarray(value))

        def end(self):
            self.seen.append(np.asarray([-1]))

    one = {name: value[:1] for name, value in prompt(torch).items()}
    streamer = Streamer()
    words = llama().generate(
        **one, max_new_tokens=12, do_sample=False, streamer=streamer,
        stopping_criteria=StoppingCriteriaList([Twelve()]),
        logits_processor=LogitsProcessorList([NeverFive()]),
    )  # fmt: skip
    return {"words": words, "streamed": np.concatenate([s.reshape(-1) for s in streamer.seen])}


def task_assisted(torch):
    assistant = fill(llama(), seed=1, scale=2.0).eval()
    one = {name: value[:1] for name, value in prompt(torch).items()}
    options = {"max_new_tokens": 10, "do_sample": False, "assistant_model": assistant}
    return {"words": llama().generate(**one, **options)}


def task_whisper(torch):
    from transformers import WhisperFeatureExtractor

    model = model_of(
        "WhisperForConditionalGeneration", "WhisperConfig", **NAMED, num_mel_bins=8, d_model=16,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=50, max_target_positions=40,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    extractor = WhisperFeatureExtractor(
        feature_size=8, sampling_rate=16000, chunk_length=1, n_fft=400
    )
    mel = extractor([numbers(16000)], sampling_rate=16000, return_tensors="pt").input_features
    options = {"max_new_tokens": 10, "do_sample": False}
    return {
        "noise": model.generate(torch.tensor(numbers(2, 8, 100)), **options),
        "mel": mel,
        "words": model.generate(mel, **options),
    }
