"""SFTTrainer, DPOTrainer, RewardTrainer and GRPOTrainer on a small Llama."""

from __future__ import annotations

from tests.clients.inputs import fill, folder
from tests.clients.tasks._tokenizers import SENTENCES, tokenizer_of

PACKAGES = "trl peft"
TIME_LIMIT_S = 600
TOLERANCE = 1e-3


def model_of(name="LlamaForCausalLM", **options):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer_of()), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=32, pad_token_id=0, bos_token_id=2,
        eos_token_id=3, **options,
    )  # fmt: skip
    return fill(getattr(transformers, name)(config))


def words_of():
    tokenizer = tokenizer_of()
    tokenizer.eos_token, tokenizer.bos_token = "[SEP]", "[CLS]"
    return tokenizer


def run(kind, data, model=None, *, steps=3, **options):
    import trl
    from datasets import Dataset

    settings = {
        "output_dir": str(folder()), "per_device_train_batch_size": 4, "max_steps": steps,
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no",
        "logging_steps": 1, "learning_rate": 1e-3, "bf16": False, "gradient_checkpointing": False,
    }  # fmt: skip
    objects = ("reward_funcs", "peft_config", "ref_model")
    extra = {name: options.pop(name) for name in objects if name in options}
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model or model_of(),
        args=getattr(trl, f"{kind}Config")(**settings, **options),
        train_dataset=Dataset.from_dict(data),
        processing_class=words_of(),
        **extra,
    )
    trainer.train()
    lines = trainer.state.log_history
    return trainer, {"losses": [float(line["loss"]) for line in lines if "loss" in line]}


def task_sft(torch):
    # Four equal rows in each batch: the order of a shuffled epoch does not matter.
    _, found = run("SFT", {"text": [SENTENCES[0]] * 12}, max_length=16)
    return found


def task_sft_with_lora(torch):
    from peft import LoraConfig

    options = {"peft_config": LoraConfig(r=4, task_type="CAUSAL_LM"), "max_length": 16}
    trainer, found = run("SFT", {"text": [SENTENCES[1]] * 12}, **options)
    return {"first": found["losses"][0], "steps": trainer.state.global_step}


def task_dpo(torch):
    rows = {"prompt": SENTENCES[0], "chosen": SENTENCES[2], "rejected": SENTENCES[3]}
    data = {name: [text] * 12 for name, text in rows.items()}
    trainer, found = run("DPO", data, max_length=40, ref_model=model_of())
    lines = [line for line in trainer.state.log_history if "rewards/margins" in line]
    return {**found, "margins": [float(line["rewards/margins"]) for line in lines]}


def task_reward(torch):
    model = model_of("LlamaForSequenceClassification", num_labels=1)
    data = {"chosen": [SENTENCES[2]] * 12, "rejected": [SENTENCES[3]] * 12}
    _, found = run("Reward", data, model, max_length=40)
    return found


def task_grpo(torch):
    def length(completions, **kwargs):
        return [float(len(text)) for text in completions]

    options = {"num_generations": 4, "max_completion_length": 6, "steps": 2}
    trainer, found = run("GRPO", {"prompt": [SENTENCES[0]] * 8}, reward_funcs=length, **options)
    return {"steps": trainer.state.global_step, "number": len(found["losses"])}
