"""save_pretrained, from_pretrained: Auto classes, shards, bfloat16, attention kinds, devices."""

from __future__ import annotations

from tests.clients.inputs import fill, folder, integers
from tests.clients.tasks._tokenizers import tokenizer_of

PACKAGES = "transformers accelerate"


def model_of():
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=80, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    return fill(BertForMaskedLM(config)).eval()


def saved(**options):
    path = folder()
    model_of().save_pretrained(path, **options)
    return path


def logits_of(torch, path, **options):
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(path, **options).eval()
    return model(torch.tensor(integers(80, 2, 9))).logits


def task_save_and_load(torch):
    path = saved()
    found = {kind: logits_of(torch, path, attn_implementation=kind) for kind in ("eager", "sdpa")}
    names = " ".join(sorted(file.name for file in path.iterdir()))
    return {"plain": logits_of(torch, path), "files": names, **found}


def task_shards(torch):
    path = saved(max_shard_size="20KB")
    shards = len(list(path.glob("*.safetensors")))
    return {"logits": logits_of(torch, path), "shards": shards}


def task_bfloat16(torch):
    logits = logits_of(torch, saved(), dtype=torch.bfloat16)
    exact = logits_of(torch, saved())
    near = ((logits.float() - exact).abs().max() / exact.abs().max()).item()
    return {"is half": logits.dtype == torch.bfloat16, "is near": near < 0.02}


def task_device_map(torch):
    path = saved()
    return {"auto": logits_of(torch, path, device_map="auto"),
            "named": logits_of(torch, path, device_map={"": "cpu"})}  # fmt: skip


def task_tokenizer(torch):
    from transformers import AutoTokenizer

    path = folder()
    tokenizer_of().save_pretrained(path)
    loaded = AutoTokenizer.from_pretrained(path)
    return {"words": loaded("hello fox", return_tensors="pt").input_ids}


def task_old_format_and_resized_embeddings(torch):
    path = folder()
    model = model_of()
    torch.save(model.state_dict(), path / "pytorch_model.bin")
    model.config.save_pretrained(path)
    model.resize_token_embeddings(96)
    fill(model)
    return {
        "logits": logits_of(torch, path),
        "resized": model(torch.tensor(integers(96, 2, 9))).logits,
    }
