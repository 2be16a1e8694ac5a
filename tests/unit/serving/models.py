"""Small random models, as transformers writes them, with a tokenizer trained on a few sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXT = """The quick brown fox jumps over the lazy dog. A model reads tokens and writes the next one.
Blocks of keys and values lie in a cache. Größe, Übermut und naïve Zeichen: 你好，世界 🙂 🚀.
Sequences come and go; the scheduler decides who runs. One two three four five six seven."""
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FAMILIES = ("llama", "mistral", "qwen2", "gpt2")


def configured(kind: str, words: int, **changes: Any) -> Any:
    """The config of a small model of a family."""
    from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

    sizes = {
        "vocab_size": words,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": 1,
        "bos_token_id": 0,
        "tie_word_embeddings": False,
    }
    if kind == "gpt2":
        own = {"vocab_size": words, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
        return GPT2Config(**own, eos_token_id=1, bos_token_id=0, **changes)
    kinds: Any = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config}
    extra = {"sliding_window": 24} if kind == "mistral" else {}
    return kinds[kind](**sizes | extra | changes)


def write_tokenizer(folder: Path, text: str = TEXT) -> int:
    """tokenizer.json and tokenizer_config.json; returns the number of words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text] * 2, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    table = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|end|>",
        "chat_template": CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(table))
    return int(tokenizer.get_vocab_size())


def write_model(folder: Path, kind: str = "llama", scale: float = 8.0, **changes: Any) -> Any:
    """A folder as transformers writes it; returns the model in PyTorch.

    scale: of the weights, so that random models do not say one word again and again.
    """
    import torch
    from transformers import AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    words = write_tokenizer(folder)
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(configured(kind, words, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= scale
            else:
                parameter += torch.randn_like(parameter) * 0.1
    model.save_pretrained(folder)
    return model
