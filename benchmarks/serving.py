"""Sixteen clients of `oneflow serve` at once, beside transformers' `generate` one by one.

    python benchmarks/serving.py [--clients 16] [--rounds 1] [--layers 8] [--json FILE]

A random Llama, float32, greedy; prompts of 5 to 200 tokens and answers of 24 to 88, the same for
all sides, whose words have to be equal. "ours, one by one" are the same requests, one after the
other. Times to the first token are seen by the clients, through the package `openai`.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measure import arguments, report

WORDS = 32000


class Request(NamedTuple):
    """prompt: tokens. limit: of new tokens."""

    prompt: list[int]
    limit: int


def requests_of(count: int) -> list[Request]:
    rng = np.random.default_rng(0)
    lengths = np.linspace(5, 200, count).astype(int)
    limits = rng.permutation(np.linspace(24, 88, count).astype(int))
    return [
        Request(rng.integers(0, WORDS, n).tolist(), int(m))
        for n, m in zip(lengths, limits, strict=True)
    ]


def write_model(folder: Path, layers: int) -> None:
    """A random model, and a tokenizer of one word a token."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=None,
        initializer_range=0.05,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def run_torch(folder: Path, count: int) -> dict[str, Any]:
    """The words of each request, one after the other, and the seconds of all."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = []

    def generate(request: Request) -> list[int]:
        ids = model.generate(
            torch.tensor([request.prompt]),
            max_new_tokens=request.limit,
            do_sample=False,
            pad_token_id=0,
        )
        return ids[0].tolist()[len(request.prompt) :]

    generate(Request([1, 2, 3], 4))
    start = time.perf_counter()
    for request in requests_of(count):
        texts.append(" ".join(f"w{token}" for token in generate(request)))
    return {"texts": texts, "seconds": time.perf_counter() - start}


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of a server that is ready."""
    command = [sys.executable, "-m", "oneflow", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = None
        for line in process.stderr:
            if found := re.search(r"http://\S+/v1", line):
                break
            print(line, end="", file=sys.stderr)
        if found is None:
            raise SystemExit("the server did not start")
        try:
            yield found[0]
        finally:
            process.terminate()
            process.wait()


async def ask(client: Any, request: Request) -> tuple[str, float]:
    """The text of an answer, and the seconds to its first token."""
    start, first, text = time.perf_counter(), 0.0, ""
    stream = await client.completions.create(
        model="model",
        prompt=request.prompt,
        max_tokens=request.limit,
        temperature=0,
        stream=True,
    )
    async for chunk in stream:
        first = first or time.perf_counter() - start
        text += chunk.choices[0].text
    return text, first


async def run_ours(url: str, count: int) -> dict[str, dict[str, Any]]:
    import openai

    requests, found = requests_of(count), {}
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
        await ask(client, Request([1, 2, 3], 4))
        start = time.perf_counter()
        alone = [await ask(client, request) for request in requests]
        found["alone"] = _result(alone, start)
        start = time.perf_counter()
        together = await asyncio.gather(*(ask(client, request) for request in requests))
        found["together"] = _result(together, start)
    return found


def _result(answers: list[tuple[str, float]], start: float) -> dict[str, Any]:
    seconds = time.perf_counter() - start
    return {"texts": [t for t, _ in answers], "firsts": [s for _, s in answers], "seconds": seconds}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--torch", help="run PyTorch's side: the folder of the model")
    args = parser.parse_args()
    if args.torch:
        print(json.dumps(run_torch(Path(args.torch), args.clients)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        write_model(path, args.layers)
        found = [_round(path, args.clients) for _ in range(args.rounds)]
    _tell(found, args.clients, args.json)


def _round(folder: Path, clients: int) -> dict[str, dict[str, Any]]:
    command = [sys.executable, __file__, "--torch", str(folder), "--clients", str(clients)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    sides = {"torch": json.loads(done.stdout.splitlines()[-1])}
    with server(folder) as url:
        sides |= asyncio.run(run_ours(url, clients))
    wanted = sides["torch"]["texts"]
    for side, one in sides.items():
        wrong = [i for i, text in enumerate(one["texts"]) if text.split() != wanted[i].split()]
        if wrong:
            raise SystemExit(f"{side}: other words than transformers for the requests {wrong}")
    return sides


def _tell(found: list[dict[str, dict[str, Any]]], clients: int, target: Any) -> None:
    names = {
        "torch": "transformers, one by one",
        "alone": "ours, one by one",
        "together": f"ours, {clients} at once",
    }
    tokens = sum(request.limit for request in requests_of(clients))
    seconds = {s: statistics.median(one[s]["seconds"] for one in found) for s in names}
    rows = []
    for side, name in names.items():
        firsts = [first for one in found for first in one[side].get("firsts", [])]
        row: dict[str, Any] = {"side": name, "tokens_s": tokens / seconds[side]}
        row["ratio"] = seconds["torch"] / seconds[side]
        row["first_p50_ms"] = 1e3 * float(np.percentile(firsts, 50)) if firsts else float("nan")
        row["first_p99_ms"] = 1e3 * float(np.percentile(firsts, 99)) if firsts else float("nan")
        rows.append(row)
    report("Serving a Llama in float32, greedy", rows, target)


if __name__ == "__main__":
    main()
