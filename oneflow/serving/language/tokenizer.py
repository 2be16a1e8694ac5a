"""Text to tokens and back, as the tokenizer.json of a folder says."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as Fast

from oneflow.core.errors import ModelError
from oneflow.serving.language.config import read_json

UNFINISHED = "\ufffd"
"""The replacement of bytes that are no whole character."""


class Tokenizer:
    """The tokenizer of a folder. Raises ModelError for one without tokenizer.json."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ModelError(
                f"{folder}: has no tokenizer.json; write it with transformers: "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        try:
            self._fast = Fast.from_file(str(path))
        except Exception as error:  # the library raises no narrower type
            raise ModelError(f"{path}: {error}") from None
        self._fast.no_truncation()
        self._fast.no_padding()
        decoder = json.dumps(read_json(path).get("decoder"))
        self._bytes = _byte_letters() if "ByteLevel" in decoder else None
        self._special = {i for i, t in self._fast.get_added_tokens_decoder().items() if t.special}

    @property
    def words(self) -> int:
        return int(self._fast.get_vocab_size())

    def encode(self, text: str, *, is_whole: bool = True) -> list[int]:
        """Return the tokens of a text. is_whole: with those that stand around a whole text, which a
        chat template writes itself."""
        return list(self._fast.encode(text, add_special_tokens=is_whole).ids)

    def decode(self, tokens: list[int], *, skips_special: bool = True) -> str:
        return str(self._fast.decode(tokens, skip_special_tokens=skips_special))

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for, which may be a part of a character."""
        word: str | None = self._fast.id_to_token(token)
        if word is None:
            return b""
        if token in self._special:
            return word.encode()
        if self._bytes is not None:
            letters = self._bytes
            return b"".join(bytes([letters[c]]) if c in letters else c.encode() for c in word)
        if len(word) == 6 and word.startswith("<0x") and word.endswith(">"):
            return bytes([int(word[3:5], 16)])
        return word.replace("▁", " ").encode()


def _byte_letters() -> dict[str, int]:
    """The letters by which byte-level tokenizers write bytes: printable ones as they are, the
    others from U+0100 on (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


class Detokenizer:
    """Text of tokens as they come, in whole characters.

    A token may be a part of a character, and the text of one may depend on the one before; so the
    last tokens that gave text are decoded together with those that came since.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._before = 0
        """Tokens of the end of `_tokens` that gave no text yet begin here."""

    def add(self, token: int) -> str:
        """Return the text that a token completes."""
        self._tokens.append(token)
        whole = self._tokenizer.decode(self._tokens)
        if whole.endswith(UNFINISHED):
            return ""
        said = self._tokenizer.decode(self._tokens[: self._before])
        made = whole[len(said) :]
        if made:
            self._tokens = self._tokens[self._before :]
            self._before = len(self._tokens)
        return made


class StopFinder:
    """A search for stop words in a stream; text that may begin one is held back."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._held = ""

    def add(self, text: str) -> tuple[str, bool]:
        """Return the text that can be sent, and whether a stop word follows it."""
        self._held += text
        found = [at for word in self._words if (at := self._held.find(word)) >= 0]
        if found:
            return self._held[: min(found)], True
        keep = max((self._begun(word) for word in self._words), default=0)
        cut = len(self._held) - keep
        told, self._held = self._held[:cut], self._held[cut:]
        return told, False

    def end(self) -> str:
        """Return the text that was held back, where the stream ends."""
        return self._held

    def _begun(self, word: str) -> int:
        """Count the letters of a stop word that stand at the end of the text."""
        most = min(len(word) - 1, len(self._held))
        return next((n for n in range(most, 0, -1) if self._held.endswith(word[:n])), 0)
