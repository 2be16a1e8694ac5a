"""LoRA with saving, loading, merging; DoRA, IA3, prefix, prompt, p-tuning, LoHa, LoKr, VeRA;
AdaLoRA; several adapters.
"""

from __future__ import annotations

from tests.clients.inputs import fill, folder, integers

PACKAGES = "peft"


def base():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=32,
    )  # fmt: skip
    return fill(LlamaForCausalLM(config))


def adapted(name="LoraConfig", **options):
    import peft

    return peft.get_peft_model(base(), getattr(peft, name)(task_type="CAUSAL_LM", **options))


def words(torch):
    return torch.tensor(integers(50, 4, 10))


def trained(torch, model):
    fill(model, seed=3, scale=0.5)
    chosen = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=1e-2, weight_decay=0.01)
    losses = []
    for _ in range(4):
        loss = model(input_ids=words(torch), labels=words(torch)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def task_lora(torch):
    from peft import PeftModel

    options = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    model = adapted(**options)
    losses = trained(torch, model)
    model.eval()
    path = folder()
    model.save_pretrained(path)
    below = {
        name.replace("base_model.model.", "").replace(".base_layer", ""): value
        for name, value in model.state_dict().items()
        if "lora" not in name
    }
    start = base()
    start.load_state_dict(below)
    loaded = PeftModel.from_pretrained(start, path).eval()
    out = model(input_ids=words(torch)).logits
    merged = model.merge_and_unload()
    made = merged.generate(
        words(torch)[:1], attention_mask=torch.ones(1, 10, dtype=torch.long), max_new_tokens=5,
        do_sample=False, pad_token_id=0,
    )  # fmt: skip
    return {
        "losses": losses,
        "logits": out,
        "loaded": loaded(input_ids=words(torch)).logits,
        "merged": merged(input_ids=words(torch)).logits,
        "made": made,
    }


def task_other_kinds(torch):
    lora = {"r": 4, "use_dora": True, "use_rslora": True, "target_modules": "all-linear"}
    return {
        "dora": trained(torch, adapted(**lora)),
        "ia3": trained(torch, adapted("IA3Config")),
        "prefix": trained(torch, adapted("PrefixTuningConfig", num_virtual_tokens=4)),
        "prompt": trained(torch, adapted("PromptTuningConfig", num_virtual_tokens=4)),
        "p-tuning": trained(torch, adapted("PromptEncoderConfig", num_virtual_tokens=4)),
        "loha": trained(torch, adapted("LoHaConfig", r=4, target_modules=["q_proj"])),
        "lokr": trained(torch, adapted("LoKrConfig", r=4, target_modules=["q_proj"])),
    }


def task_vera_and_adalora(torch):
    from peft import AdaLoraConfig

    assert AdaLoraConfig
    vera = {"r": 4, "target_modules": ["q_proj"]}
    ada = {"init_r": 4, "target_r": 2, "total_step": 10, "target_modules": ["q_proj"]}
    return {
        "vera": trained(torch, adapted("VeraConfig", **vera)),
        "adalora": trained(torch, adapted("AdaLoraConfig", **ada)),
    }


def task_several_adapters(torch):
    from peft import LoraConfig

    model = adapted(r=2)
    model.add_adapter("b", LoraConfig(task_type="CAUSAL_LM", r=4))
    model.set_adapter("b")
    fill(model, seed=5)
    out = model(input_ids=words(torch)).logits
    with model.disable_adapter():
        without = model(input_ids=words(torch)).logits
    model.add_weighted_adapter(["default", "b"], [0.5, 0.5], "both", combination_type="cat")
    model.set_adapter("both")
    trainable, total = model.get_nb_trainable_parameters()
    return {
        "out": out,
        "without": without,
        "both": model(input_ids=words(torch)).logits,
        "counts": [trainable, total],
    }
