"""A tokenizer that needs no file: WordPiece over the words of four sentences."""

from __future__ import annotations

SENTENCES = (
    "the quick brown fox jumps over the lazy dog",
    "hello world this is a test of tokenizers",
    "good movie and great acting",
    "bad film with boring plot",
)
MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tokenizer_of():
    """Return a fast tokenizer of transformers with BERT's marks."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz"
    known = {*" ".join(SENTENCES).split(), *letters, *(f"##{letter}" for letter in letters)}
    places = {word: place for place, word in enumerate([*MARKS, *sorted(known)])}
    made = Tokenizer(models.WordPiece(places, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    marks = dict(zip(names, MARKS, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=40, **marks)
