"""pipeline: text classification, masks, entities (in chunks, too), features, zero-shot, texts,
images, CLIP, speech.
"""

from __future__ import annotations

import numpy as np

from tests.clients.inputs import fill, numbers, shares
from tests.clients.tasks._tokenizers import SENTENCES, tokenizer_of

PACKAGES = "transformers pillow torchvision"
TOLERANCE = 1e-3  # resized pictures may be one of 255 apart
TIME_LIMIT_S = 600

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip


def bert(name, **options):
    import transformers

    config = transformers.BertConfig(
        vocab_size=len(tokenizer_of()), max_position_embeddings=64, **SMALL, **options
    )
    return fill(getattr(transformers, name)(config)).eval()


def pipe(task, model, **options):
    from transformers import pipeline

    options.setdefault("tokenizer", tokenizer_of())
    return pipeline(task, model=model, device="cpu", **options)


def scores(found):
    return {
        "scores": [one["score"] for one in found],
        "labels": " ".join(str(one.get("label", one.get("token_str"))) for one in found),
    }


def picture():
    from PIL import Image

    return Image.fromarray((shares(40, 50, 3) * 255).astype(np.uint8))


def task_tokenizer(torch):
    batch = tokenizer_of()(list(SENTENCES[:3]), padding=True, return_tensors="pt").to("cpu")
    assert all(isinstance(value, torch.Tensor) for value in batch.values())
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def task_text_classification(torch):
    found = pipe("text-classification", bert("BertForSequenceClassification"))
    return scores(found(list(SENTENCES), batch_size=2))


def task_fill_mask(torch):
    return scores(pipe("fill-mask", bert("BertForMaskedLM"))("the quick [MASK] fox"))


def task_entities(torch):
    model = bert("BertForTokenClassification")
    found = pipe("token-classification", model, aggregation_strategy="simple")("hello world")
    return {"scores": [float(one["score"]) for one in found], "number": len(found)}


def task_features(torch):
    return {"all": np.array(pipe("feature-extraction", bert("BertModel"))("hello world"))}


def task_zero_shot(torch):
    labels = dict(enumerate(("contradiction", "neutral", "entailment")))
    back = {label: place for place, label in labels.items()}
    model = bert("BertForSequenceClassification", num_labels=3, id2label=labels, label2id=back)
    found = pipe("zero-shot-classification", model)
    return {"scores": found("good movie", candidate_labels=["fox", "dog", "film"])["scores"]}


def task_chunks_of_a_long_text(torch):
    model = bert("BertForTokenClassification")
    found = pipe("token-classification", model, stride=4)(" ".join(SENTENCES * 3))
    return {"scores": [float(one["score"]) for one in found]}


def task_text_generation(torch):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=len(tokenizer_of()), n_embd=32, n_layer=1, n_head=2, n_positions=64,
        bos_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    found = pipe("text-generation", fill(GPT2LMHeadModel(config), scale=2.0).eval())
    many = found(list(SENTENCES[:2]), max_new_tokens=8, do_sample=False, batch_size=1)
    return {"texts": [one[0]["generated_text"] for one in many]}


def task_image_classification(torch):
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    model = fill(ViTForImageClassification(ViTConfig(**SMALL, image_size=32, patch_size=8))).eval()
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    found = pipe("image-classification", model, tokenizer=None, image_processor=processor)
    pixels = processor(picture(), return_tensors="pt")["pixel_values"]
    return {"near": (pixels * 127.5).round() / 2000, **scores(found(picture()))}


def task_clip(torch):
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    config = CLIPConfig(
        text_config={"vocab_size": len(tokenizer_of()), **SMALL, "eos_token_id": 3},
        vision_config={**SMALL, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    side = {"height": 32, "width": 32}
    processor = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side)
    model = fill(CLIPModel(config)).eval()
    found = pipe("zero-shot-image-classification", model, image_processor=processor)
    return {"scores": [one["score"] for one in found(picture(), candidate_labels=["fox", "dog"])]}


def task_speech(torch):
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=len(tokenizer_of()), **SMALL, conv_dim=(16, 16), conv_stride=(5, 2),
        conv_kernel=(10, 3), num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    model = fill(Wav2Vec2ForCTC(config)).eval()
    extractor = Wav2Vec2FeatureExtractor()
    sound = extractor(numbers(1600), sampling_rate=16000, return_tensors="pt").input_values
    loss = model(sound, labels=torch.tensor([[5, 9, 9, 12]])).loss
    loss.backward()
    found = pipe("automatic-speech-recognition", model, feature_extractor=extractor)
    return {
        "logits": model(sound).logits,
        "loss": loss,
        "gradient": model.lm_head.weight.grad,
        "text": found(numbers(1600))["text"],
    }
