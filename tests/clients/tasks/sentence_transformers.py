"""encode, similarity, search; losses; SentenceTransformerTrainer; cross encoder; save and load."""

from __future__ import annotations

from tests.clients.inputs import fill, folder, numbers
from tests.clients.tasks._tokenizers import SENTENCES, tokenizer_of

PACKAGES = "sentence-transformers datasets accelerate"
TIME_LIMIT_S = 600
TOLERANCE = 1e-3


def bert_folder(name="BertModel", **options):
    import transformers

    path = folder()
    tokenizer = tokenizer_of()
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, **options,
    )  # fmt: skip
    fill(getattr(transformers, name)(config)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def model_of():
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    words = Transformer(bert_folder(), max_seq_length=32)
    pooling = Pooling(32, pooling_mode="mean")
    return SentenceTransformer(modules=[words, pooling, Normalize()], device="cpu")


def task_encode_and_search(torch):
    from sentence_transformers import util

    model = model_of()
    made = model.encode(list(SENTENCES), convert_to_tensor=True, show_progress_bar=False)
    found = util.semantic_search(made[:2], made, top_k=3)
    path = folder()
    model.save(str(path))
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(str(path), device="cpu")
    return {
        "vectors": made,
        "array": model.encode(list(SENTENCES), batch_size=2, show_progress_bar=False),
        "loaded": loaded.encode(list(SENTENCES), show_progress_bar=False),
        "similarity": model.similarity(made, made),
        "scores": [[one["score"] for one in row] for row in found],
        "places": [[one["corpus_id"] for one in row] for row in found],
        "clusters": len(util.community_detection(made, threshold=0.2, min_community_size=1)),
    }


def task_losses(torch):
    from sentence_transformers import losses

    model = model_of()
    one, two = ([SENTENCES[i] for i in places] for places in ((0, 1, 2), (1, 2, 3)))
    parts = [model.tokenize(texts) for texts in (one, two)]
    labels = torch.tensor([0.2, 0.9, 0.4])
    found = {}
    for name, kind, target in (
        ("ranking", losses.MultipleNegativesRankingLoss, None),
        ("cosine", losses.CosineSimilarityLoss, labels),
        ("cosent", losses.CoSENTLoss, labels),
        ("contrastive", losses.ContrastiveLoss, labels.round()),
    ):
        model.zero_grad()
        loss = kind(model)([dict(part) for part in parts], target)
        loss.backward()
        gradient = next(p for n, p in model.named_parameters() if n.endswith("query.weight")).grad
        found |= {name: loss, f"{name} gradient": gradient.clone()}
    return found


def task_trainer(torch):
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import CosineSimilarityLoss

    model = model_of()
    data = Dataset.from_dict(
        {
            "sentence1": list(SENTENCES) * 4,
            "sentence2": list(SENTENCES[::-1]) * 4,
            "score": (numbers(16) > 0).astype(float).tolist(),
        }
    )
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder()), num_train_epochs=1, per_device_train_batch_size=16,
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", learning_rate=1e-3,
        logging_steps=1,
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=data, loss=CosineSimilarityLoss(model)
    )
    ended = trainer.train()
    return {"loss": ended.training_loss, "vectors": model.encode(list(SENTENCES))}


def task_cross_encoder(torch):
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(
        bert_folder("BertForSequenceClassification", num_labels=1), num_labels=1, device="cpu"
    )
    pairs = [(SENTENCES[0], text) for text in SENTENCES[1:]]
    ranked = model.rank(SENTENCES[0], list(SENTENCES[1:]))
    return {"scores": model.predict(pairs), "order": [one["corpus_id"] for one in ranked]}
