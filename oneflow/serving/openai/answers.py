"""Bodies of answers, whole and in chunks, of both kinds of completions."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from oneflow.serving.language.messages import Choice
from oneflow.serving.language.texts import Piece
from oneflow.serving.language.tokenizer import Tokenizer


@dataclass
class Usage:
    prompt: int
    made: int = 0

    def body(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.made,
            "total_tokens": self.prompt + self.made,
        }


@dataclass
class Answer(ABC):
    """The form of an answer. logprobs: whether the request asked for them."""

    model: str
    tokenizer: Tokenizer
    usage: Usage
    logprobs: bool
    prefix: ClassVar[str] = ""
    whole_kind: ClassVar[str] = ""
    chunk_kind: ClassVar[str] = ""
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = self.prefix + uuid.uuid4().hex

    def whole(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._body(self.whole_kind, choices) | {"usage": self.usage.body()}

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._body(self.chunk_kind, choices)

    def last_chunk(self) -> dict[str, Any]:
        """The last chunk of a stream, with the usage."""
        return self.chunk([]) | {"usage": self.usage.body()}

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return head | {"choices": choices}

    def _word(self, token: int) -> str:
        return self.tokenizer.bytes_of(token).decode(errors="replace")

    # ---- what differs ----------------------------------------------------------------------------

    def first_delta(self, index: int) -> dict[str, Any] | None:
        """A choice of a chunk that stands before all others, if there is one."""
        return None

    @abstractmethod
    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        """A choice of a chunk."""

    @abstractmethod
    def choice(self, index: int, text: str, choices: list[Choice], end: str) -> dict[str, Any]:
        """A choice of a whole answer."""


class ChatAnswer(Answer):
    prefix = "chatcmpl-"
    whole_kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def first_delta(self, index: int) -> dict[str, Any] | None:
        return self._delta(index, {"role": "assistant", "content": ""}, [], "")

    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        return self._delta(index, {"content": piece.text}, piece.choices, piece.end)

    def choice(self, index: int, text: str, choices: list[Choice], end: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(choices),
            "finish_reason": end,
        }

    def _delta(
        self, index: int, delta: dict[str, Any], choices: list[Choice], end: str
    ) -> dict[str, Any]:
        logprobs = self._logprobs(choices) if choices else None
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": end or None}

    def _logprobs(self, choices: list[Choice]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        listed = []
        for choice in choices:
            best = [self._scored(token, score) for token, score in choice.best]
            own = self._scored(choice.token, choice.logprob or 0.0)
            listed.append(own | {"top_logprobs": best})
        return {"content": listed, "refusal": None}

    def _scored(self, token: int, logprob: float) -> dict[str, Any]:
        found = self.tokenizer.bytes_of(token)
        return {
            "token": found.decode(errors="replace"),
            "logprob": logprob,
            "bytes": list(found),
        }


class TextAnswer(Answer):
    prefix = "cmpl-"
    whole_kind = chunk_kind = "text_completion"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._offsets: dict[int, int] = {}
        """Letters of each choice whose tokens were told."""

    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        return self.choice(index, piece.text, piece.choices, piece.end)

    def choice(self, index: int, text: str, choices: list[Choice], end: str) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, choices) if self.logprobs else None,
            "finish_reason": end or None,
        }

    def _logprobs(self, index: int, choices: list[Choice]) -> dict[str, Any]:
        words = [self._word(choice.token) for choice in choices]
        offsets, at = [], self._offsets.get(index, 0)
        for word in words:
            offsets.append(at)
            at += len(word)
        self._offsets[index] = at
        best = [
            {self._word(token): score for token, score in choice.best} or None for choice in choices
        ]
        return {
            "tokens": words,
            "token_logprobs": [choice.logprob for choice in choices],
            "top_logprobs": best,
            "text_offset": offsets,
        }
