"""`oneflow serve` with a language model, as OpenAI's own client sees it."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import openai
import pytest
import torch
from transformers import AutoTokenizer

from tests.support.serving import Serving, serving
from tests.support.waiting import until, wait_until
from tests.unit.serving.models import write_model

MESSAGES: list[Any] = [{"role": "user", "content": "The quick brown 🙂 fox"}]


class Served(NamedTuple):
    server: Serving
    model: Any
    tokenizer: Any
    client: openai.OpenAI

    def greedy(self, prompt: list[int], limit: int) -> list[int]:
        """Tokens of transformers."""
        ids = self.model.generate(
            torch.tensor([prompt]), max_new_tokens=limit, do_sample=False, pad_token_id=0
        )
        return [token for token in ids[0].tolist()[len(prompt) :] if token != 1]

    def text(self, tokens: list[int]) -> str:
        """Without half a character at the end."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True)).rstrip("\ufffd")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model = write_model(folder, "qwen2")
    flags = ("--step-tokens", "32", "--max-requests", "24", "--max-body", "100000")
    with serving(folder, *flags) as server:
        client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
        with client:
            yield Served(server, model, AutoTokenizer.from_pretrained(folder), client)


def ask(client: openai.OpenAI, prompt: Any, limit: int = 12, **more: Any) -> Any:
    return client.completions.create(model="tiny", prompt=prompt, max_tokens=limit, **more)


def test_the_model_is_listed(served: Served) -> None:
    assert [model.id for model in served.client.models.list()] == ["tiny"]
    assert served.client.models.retrieve("tiny").owned_by == "oneflow"


def test_clients_at_once_get_the_tokens_of_transformers(served: Served) -> None:
    prompts = [list(range(5, 5 + n)) for n in (3, 40, 9, 100, 17, 60, 1, 30)]

    async def all_at_once() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=served.server.url, api_key="none") as client:
            asked = [
                client.completions.create(
                    model="tiny", prompt=prompt, max_tokens=10 + i, temperature=0
                )
                for i, prompt in enumerate(prompts)
            ]
            return await asyncio.gather(*asked)

    for i, found in enumerate(asyncio.run(all_at_once())):
        wanted = served.greedy(prompts[i], 10 + i)
        assert found.choices[0].text == served.text(wanted)
        assert found.usage.prompt_tokens == len(prompts[i])
        assert found.usage.completion_tokens == len(wanted)
        assert found.choices[0].finish_reason == ("length" if len(wanted) == 10 + i else "stop")


def test_chats_come_whole_and_in_chunks(served: Served) -> None:
    given: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0}
    limit = {"max_completion_tokens": 30}
    whole = served.client.chat.completions.create(**given, **limit)
    prompt = served.tokenizer.apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_dict=False
    )
    assert whole.choices[0].message.content == served.text(served.greedy(prompt, 30))
    assert whole.choices[0].message.role == "assistant"
    options = {"include_usage": True}
    stream = served.client.chat.completions.create(
        **given, **limit, stream=True, stream_options=options
    )
    *chunks, last = stream
    assert chunks[0].choices[0].delta.role == "assistant"
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(parts) == whole.choices[0].message.content
    assert len([part for part in parts if part]) > 5
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert not last.choices and last.usage == whole.usage


def test_stop_words_end_the_text_before_them(served: Served) -> None:
    text = ask(served.client, "The quick", 40, temperature=0).choices[0].text
    stop = text[7:11]  # across tokens
    cut = text[: text.index(stop)]
    found = ask(served.client, "The quick", 40, temperature=0, stop=["nowhere", stop])
    assert (found.choices[0].text, found.choices[0].finish_reason) == (cut, "stop")
    stream = ask(served.client, "The quick", 40, temperature=0, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == cut
    wait_until(served.server.is_empty, "the sequences are cancelled")


def test_seeds_give_the_same_texts_again(served: Served) -> None:
    first = [c.text for c in ask(served.client, "One two", n=3, seed=7, top_p=0.9).choices]
    again = [c.text for c in ask(served.client, "One two", n=3, seed=7, top_p=0.9).choices]
    assert first == again and len(set(first)) == 3
    assert [c.text for c in ask(served.client, "One two", n=3, seed=8).choices] != first


def test_prompts_are_texts_or_tokens_one_or_many(served: Served) -> None:
    texts = ["The quick", "One two three"]
    tokens = [served.tokenizer.encode(text) for text in texts]
    found = [ask(served.client, p, temperature=0).choices for p in (texts, tokens)]
    assert [c.text for c in found[0]] == [c.text for c in found[1]]
    assert ask(served.client, tokens[1], temperature=0).choices[0].text == found[0][1].text


def test_log_probabilities_are_those_of_torch(served: Served) -> None:
    text = "The quick brown fox"
    found = ask(served.client, text, 5, temperature=0, logprobs=2, echo=True).choices[0]
    prompt = served.tokenizer.encode(text)
    tokens = prompt + served.greedy(prompt, 5)
    with torch.no_grad():
        scores = torch.log_softmax(served.model(torch.tensor([tokens])).logits[0].double(), -1)
    wanted = [float(scores[i, token]) for i, token in enumerate(tokens[1:])]
    logprobs = found.logprobs
    assert logprobs is not None and found.text.startswith(text)
    assert logprobs.token_logprobs[0] is None
    assert logprobs.token_logprobs[1:] == pytest.approx(wanted, abs=1e-4)
    chat = served.client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2, temperature=0
    )
    listed = chat.choices[0].logprobs.content
    assert len(listed) == 3
    assert all(one.logprob == one.top_logprobs[0].logprob for one in listed)
    assert (
        b"".join(bytes(one.bytes) for one in listed)
        .decode(errors="replace")
        .startswith(chat.choices[0].message.content)
    )


REFUSED: list[tuple[dict[str, Any], type[openai.APIStatusError], str]] = [
    ({"model": "other"}, openai.NotFoundError, "does not exist"),
    ({"prompt": list(range(250))}, openai.BadRequestError, "maximum context length is 256"),
    ({"prompt": [5, 100000]}, openai.BadRequestError, "beyond the model's"),
    ({"prompt": ""}, openai.BadRequestError, "no tokens"),
    ({"prompt": [{}]}, openai.BadRequestError, "must be a text, tokens"),
    ({"temperature": 3}, openai.BadRequestError, "temperature must be 0 to 2"),
    ({"max_tokens": "many"}, openai.BadRequestError, "Expected `int | null`"),
    ({"suffix": "x"}, openai.BadRequestError, "suffix is not supported"),
    ({"prompt": "x" * 100001}, openai.APIStatusError, "longer than 100000 bytes"),
    ({"prompt": ["a"] * 9, "n": 3}, openai.RateLimitError, "the limit is 24"),
]


@pytest.mark.parametrize(("given", "kind", "words"), REFUSED)
def test_wrong_requests_are_errors_of_the_client(
    served: Served, given: dict[str, Any], kind: type[openai.APIStatusError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        served.client.completions.create(
            **{"model": "tiny", "prompt": "a", "max_tokens": 9} | given
        )


def test_what_is_no_json_and_no_route_is_refused(served: Served) -> None:
    for path, data, status in (("completions", b"{", 400), ("nowhere", b"{}", 404)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{served.server.url}/{path}", data)
        assert caught.value.code == status
        assert json.loads(caught.value.read())["error"]["message"]


def test_full_queues_refuse_and_clients_that_leave_free_them(served: Served) -> None:
    """24 texts are under way; one more is refused, and comes through when they are left."""

    async def scene() -> None:
        async with openai.AsyncOpenAI(
            base_url=served.server.url, api_key="none", max_retries=0
        ) as client:

            async def begin() -> Any:
                stream = await client.completions.create(
                    model="tiny", prompt=[9, 8, 7], max_tokens=240, stream=True, n=8
                )
                await anext(aiter(stream))
                return stream

            streams = [await begin() for _ in range(3)]
            with pytest.raises(openai.RateLimitError) as caught:
                await client.completions.create(model="tiny", prompt="a", max_tokens=4)
            assert caught.value.response.headers["Retry-After"] == "1"
            for stream in streams:
                await stream.close()
            await until(served.server.is_empty)
            found = await client.completions.create(model="tiny", prompt="a", max_tokens=4)
            assert found.choices[0].finish_reason == "length"
            waiting = client.completions.create(model="tiny", prompt="a", max_tokens=250, n=20)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(waiting, 0.1)
            await until(served.server.is_empty)

    asyncio.run(scene())
    found = served.server.metrics()
    assert found['oneflow_serving_requests_total{endpoint="completions",status="499"}'] >= 3
    assert found['oneflow_serving_requests_total{endpoint="completions",status="429"}'] >= 1
    assert found['oneflow_serving_tokens_total{kind="made"}'] > 100
    assert found["oneflow_serving_first_token_seconds_count"] > 10
