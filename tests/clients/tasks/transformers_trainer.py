"""Trainer: training, evaluation, prediction, checkpoints, resuming; accumulation, early stop and
best model; bfloat16; checkpointed activations with Adafactor; workers; label smoothing; compiled.
"""

from __future__ import annotations

from tests.clients.inputs import fill, folder, integers, is_library

PACKAGES = "transformers accelerate"
TOLERANCE = 1e-3  # of losses after two epochs


def texts_of(torch, count=48, seed=0, *, as_labels=False):
    class Texts(torch.utils.data.Dataset):
        words = integers(50, count, 12, seed=seed)

        def __len__(self):
            return count

        def __getitem__(self, index):
            words = torch.tensor(self.words[index])
            if as_labels:
                return {"input_ids": words, "labels": words.clone()}
            label = torch.tensor(int(self.words[index].sum() % 2))
            return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": label}

    return Texts()


def classifier():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_labels=2, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return fill(BertForSequenceClassification(config))


def trainer_of(torch, path, model=None, *, data=None, callbacks=None, accuracy=False, **options):
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    chosen = {
        "num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3,
        "logging_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch",
        "warmup_steps": 2, "weight_decay": 0.01, **options,
    }  # fmt: skip
    arguments = TrainingArguments(
        output_dir=str(path), report_to=[], use_cpu=True, disable_tqdm=True, **chosen
    )

    def share(found):
        return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}

    return InOrder(
        model=model or classifier(),
        args=arguments,
        train_dataset=data or texts_of(torch),
        eval_dataset=None if chosen["eval_strategy"] == "no" else texts_of(torch, 16, 1),
        compute_metrics=share if accuracy else None,
        callbacks=callbacks,
    )


def logged(trainer, name):
    return [float(line[name]) for line in trainer.state.log_history if name in line]


def task_train_evaluate_resume(torch):
    from transformers import BertForSequenceClassification

    path = folder()
    trainer = trainer_of(torch, path, accuracy=True)
    ended = trainer.train()
    evaluated = trainer.evaluate()
    predicted = trainer.predict(texts_of(torch, 16, 2)).predictions
    trainer.save_model(str(path / "final"))
    loaded = BertForSequenceClassification.from_pretrained(path / "final")
    one = {name: value[None] for name, value in texts_of(torch)[0].items()}
    saved = sorted(path.glob("checkpoint-*"), key=lambda p: int(p.name.rpartition("-")[2]))
    again = trainer_of(torch, path, accuracy=True)
    again.train(resume_from_checkpoint=str(saved[0]))
    return {
        "loss": ended.training_loss,
        "losses": logged(trainer, "loss"),
        "norms": logged(trainer, "grad_norm"),
        "rates": logged(trainer, "learning_rate"),
        "evaluated": evaluated["eval_loss"],
        "accuracy": evaluated["eval_accuracy"],
        "predicted": predicted,
        "loaded": loaded(**one).logits,
        "files": " ".join(sorted(file.name for file in saved[0].iterdir())),
        "resumed": again.evaluate()["eval_loss"],
        "resumed losses": logged(again, "loss"),
    }


def task_accumulation_cosine_best_model(torch):
    from transformers import EarlyStoppingCallback

    trainer = trainer_of(
        torch, folder(), gradient_accumulation_steps=2, lr_scheduler_type="cosine",
        load_best_model_at_end=True, metric_for_best_model="eval_loss", max_grad_norm=0.5,
        callbacks=[EarlyStoppingCallback(2)],
    )  # fmt: skip
    loss = trainer.train().training_loss
    return {"loss": loss, "best": trainer.state.best_metric, "norms": logged(trainer, "grad_norm")}


def task_bfloat16(torch):
    trainer = trainer_of(torch, folder(), bf16=True, num_train_epochs=1)
    return {"near": round(trainer.train().training_loss, 1)}


def task_language_model_with_checkpointed_activations(torch):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=32,
    )  # fmt: skip
    trainer = trainer_of(
        torch, folder(), fill(LlamaForCausalLM(config)), data=texts_of(torch, as_labels=True),
        gradient_checkpointing=True, optim="adafactor", save_strategy="no", eval_strategy="no",
    )  # fmt: skip
    return {"loss": trainer.train().training_loss, "losses": logged(trainer, "loss")}


def task_random_order_by_a_worker(torch):
    from transformers import Trainer

    options = {"dataloader_num_workers": 1, "num_train_epochs": 1}
    trainer = trainer_of(torch, folder(), **options)
    trainer = Trainer(
        model=trainer.model, args=trainer.args, train_dataset=trainer.train_dataset,
        eval_dataset=trainer.eval_dataset,
    )  # fmt: skip
    return {"near": abs(trainer.train().training_loss - 0.7) < 0.1}


def task_sgd_label_smoothing_adamw_fused_name(torch):
    smooth = trainer_of(
        torch, folder(), optim="sgd", label_smoothing_factor=0.1, num_train_epochs=1,
        save_strategy="no",
    )  # fmt: skip
    default = trainer_of(torch, folder(), num_train_epochs=1, save_strategy="no")
    return {"smooth": smooth.train().training_loss, "default": default.train().training_loss}


def task_compiled(torch):
    options = {"torch_compile": True} if is_library(torch) else {}
    trainer = trainer_of(torch, folder(), num_train_epochs=1, save_strategy="no", **options)
    return {"loss": trainer.train().training_loss}
