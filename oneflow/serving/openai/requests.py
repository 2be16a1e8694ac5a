"""Bodies of requests, checked: options that are not supported are refused, never ignored."""

from __future__ import annotations

import secrets
from typing import Any, TypeVar

import msgspec

from oneflow.serving.language.messages import Submit
from oneflow.serving.openai.failures import wrong

MOST_CHOICES, MOST_LOGPROBS, MOST_STOPS = 32, 20, 16


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class Common(msgspec.Struct, kw_only=True):
    """Fields of both kinds of completions. Those below `user` are accepted with these values
    alone."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    user: str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    def check(self) -> None:
        """Check values and combinations. Raises Failure."""
        _within("temperature", self.temperature, 0, 2)
        _within("top_p", self.top_p, 0, 1)
        _within("n", self.n, 1, MOST_CHOICES)
        _within("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options is for requests with stream", "stream_options")
        if len(self.stops) > MOST_STOPS or not all(self.stops):
            raise wrong(f"stop needs at most {MOST_STOPS} words, none of them empty", "stop")
        _refuse(self, "presence_penalty", "frequency_penalty", "logit_bias")

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def submits(
        self, prompts: list[list[int]], limit: int, ends: list[int], logprobs: int, scores: bool
    ) -> list[Submit]:
        """Make n sequences of each prompt, with seeds of their own. ends: end-of-text tokens."""
        seed = secrets.randbits(63) if self.seed is None else self.seed % (1 << 64)
        temperature = 1.0 if self.temperature is None else self.temperature
        top_p = 1.0 if self.top_p is None else self.top_p
        return [
            Submit(
                0, tokens, limit, ends, temperature, top_p, (seed + i) % (1 << 64), logprobs, scores
            )
            for tokens in prompts
            for i in range(self.num_choices)
        ]


class CompletionRequest(Common, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | list[Any]
    max_tokens: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def check(self) -> None:
        Common.check(self)
        _within("max_tokens", self.max_tokens, 0, 1 << 31)
        _within("logprobs", self.logprobs, 0, MOST_LOGPROBS)
        _refuse(self, "suffix")
        if self.best_of not in (None, self.num_choices):
            raise wrong("best_of other than n is not supported", "best_of")
        self.prompts()

    def prompts(self) -> list[str] | list[list[int]]:
        """Return all prompts, as texts or as tokens."""
        given: list[Any] = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if given and all(isinstance(x, str) for x in given):
            return given
        if given and all(isinstance(x, list) for x in given):
            return [_tokens(x) for x in given]
        return [_tokens(given)]


class ChatRequest(Common, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None

    def check(self) -> None:
        Common.check(self)
        _within("max_tokens", self.max_tokens, 1, 1 << 31)
        _within("max_completion_tokens", self.max_completion_tokens, 1, 1 << 31)
        _within("top_logprobs", self.top_logprobs, 0, MOST_LOGPROBS)
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong("top_logprobs is for requests with logprobs", "top_logprobs")
        _refuse(self, "tools", "functions")
        if self.response_format not in (None, {"type": "text"}):
            raise wrong("response_format other than text is not supported", "response_format")
        if self.modalities not in (None, ["text"]):
            raise wrong("modalities other than text are not supported", "modalities")
        if not self.messages:
            raise wrong("messages must not be empty", "messages")

    def plain_messages(self) -> list[dict[str, Any]]:
        """Return the messages with plain texts as contents: parts of one are joined."""
        return [_plain(message, i) for i, message in enumerate(self.messages)]


R = TypeVar("R", CompletionRequest, ChatRequest)


def parse(kind: type[R], body: bytes) -> R:
    """Decode and check a body. Raises Failure."""
    try:
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        _, _, place = str(error).partition("`$.")
        raise wrong(str(error), place.rstrip("`") or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise wrong(f"the body is no JSON: {error}") from None
    request.check()
    return request


def _within(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise wrong(f"{name} must be {low} to {high}, got {value}", name)


def _refuse(request: Common, *names: str) -> None:
    for name in names:
        if getattr(request, name):
            raise wrong(f"{name} is not supported", name)


def _tokens(given: list[Any]) -> list[int]:
    if not given or not all(type(x) is int and x >= 0 for x in given):
        raise wrong("prompt must be a text, tokens, or a list of one of these", "prompt")
    return given


def _plain(message: dict[str, Any], number: int) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(message.get("role"), str):
        raise wrong(f"{where} needs a role", where)
    content = message.get("content")
    if content is None:
        content = ""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise wrong(f"{where}: only parts of text are supported", where)
        content = "".join(map(str, parts))
    if not isinstance(content, str):
        raise wrong(f"{where}: its content must be a text", where)
    return message | {"content": content}
