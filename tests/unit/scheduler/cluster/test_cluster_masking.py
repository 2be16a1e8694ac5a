"""Secrets in commands are hidden from others; all else is shown as it is."""

from __future__ import annotations

import time

import pytest

from oneflow.scheduler.cluster.views import MAX_WORD_CHARS, masked, masked_words


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ("python train.py --lr 0.1 --epochs=3", "python train.py --lr 0.1 --epochs=3"),
        ("train --wandb-api-key abc --lr 1", "train --wandb-api-key *** --lr 1"),
        ("train --password=hunter2 x", "train --password=*** x"),
        ("train --hf_token abc", "train --hf_token ***"),
        ("train --token --lr 1", "train --token --lr 1"),  # it has no value
        ("env API_KEY=abc SECRET_ID=5 N=1 train", "env API_KEY=*** SECRET_ID=*** N=1 train"),
        ("train postgres://ann:pw@db/x", "train postgres://ann:***@db/x"),
        (
            "train --num-tokens-per-batch 5 --authToken x",
            "train --num-tokens-per-batch 5 --authToken ***",
        ),
        ("train --keys 3 --monkey 4", "train --keys 3 --monkey 4"),
        ("train oft_abcdefghijklm ghp_0123456789abc", "train *** ***"),
        ("train --resume a.b.c --url https://h/x@y", "train --resume a.b.c --url https://h/x@y"),
    ],
)
def test_values_of_what_is_named_like_a_secret_are_hidden(argv: str, shown: str) -> None:
    assert masked_words(argv.split(" ")) == shown.split(" ")


def test_a_long_word_costs_little_and_hides_its_end() -> None:
    started = time.process_time()
    for word in ("a" * 65536, "-" * 65536, "token" * 13000, "http://" * 9000, "a:/" * 20000):
        assert len(masked(word)) <= MAX_WORD_CHARS + 3
    assert time.process_time() - started < 5
