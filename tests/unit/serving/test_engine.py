"""Greedy tokens of many sequences at once, beside transformers' own, one after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oneflow.core.errors import ModelError
from oneflow.serving.language.config import Rotation, load_config
from oneflow.serving.language.engine import Engine, EngineSettings, open_model
from oneflow.serving.language.messages import Made, Submit
from oneflow.serving.language.rotation import frequencies
from oneflow.serving.language.weights import Ranks

from .models import FAMILIES, configured, write_model

SETTINGS = EngineSettings(block=4, cache_tokens=200, budget=16, most=8)


def engine_of(folder: Path, settings: EngineSettings = SETTINGS) -> Engine:
    model = open_model(folder, Ranks(), settings)
    return Engine(model, model.step.run, settings)


def run(engine: Engine, submits: list[Submit]) -> dict[int, list[Made]]:
    found: dict[int, list[Made]] = {submit.id: [] for submit in submits}
    for submit in submits:
        engine.submit(submit)
    while not engine.scheduler.is_idle:
        for made in engine.step().made:
            found[made.id].append(made)
    assert engine.scheduler.num_used == 0
    return found


def tokens_of(made: list[Made]) -> list[int]:
    return [choice.token for one in made if not one.of_prompt for choice in one.choices]


def likeliest(model: Any, prompt: list[int], made: list[int]) -> list[int]:
    """The likeliest token behind the prompt and behind each token made: `made` and one more, if
    those are the tokens of greedy decoding."""
    with torch.no_grad():
        found = model(torch.tensor([prompt + made])).logits[0].argmax(-1)
    return found[len(prompt) - 1 :].tolist()


CHANGES: list[dict[str, Any]] = [
    {},
    {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "tie_word_embeddings": True,
        "attention_bias": True,
    },
]
MODELS = [(kind, {}) for kind in FAMILIES] + [("llama", change) for change in CHANGES[1:]]


@pytest.mark.parametrize(("kind", "changes"), MODELS)
def test_greedy_tokens_are_those_of_transformers(
    kind: str, changes: dict[str, Any], tmp_path: Path, rng: np.random.Generator
) -> None:
    """Prompts in pieces, several sequences a step, some computed again for want of blocks."""
    model = write_model(tmp_path, kind, **changes)
    engine = engine_of(tmp_path)
    prompts = [rng.integers(5, 250, n).tolist() for n in (1, 40, 3, 17, 70, 2, 30, 5, 60)]
    limits = [30, 20, 1, 40, 25, 40, 30, 40, 8]
    submits = [
        Submit(i, p, n, [1], 0.0, 1.0, 0)
        for i, (p, n) in enumerate(zip(prompts, limits, strict=True))
    ]
    found = run(engine, submits)
    assert engine.scheduler.num_preempted > 0
    for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        made, end = tokens_of(found[i]), found[i][-1].end
        wanted = likeliest(model, prompt, made)
        assert made == wanted[:-1]
        assert end == ("length" if len(made) == limit else "stop")
        assert end == "length" or wanted[-1] == 1


def test_log_probabilities_of_prompts_and_of_new_tokens_are_torchs(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    prompt = list(range(5, 50))
    submit = Submit(0, prompt, 4, [], 0.0, 1.0, 0, logprobs=3, scores_prompt=True)
    other = Submit(1, prompt[:9], 6, [], 0.0, 1.0, 0)
    found = run(engine_of(tmp_path), [other, submit])
    choices = [choice for made in found[0] for choice in made.choices]
    tokens = [choice.token for choice in choices]
    assert tokens[: len(prompt) - 1] == prompt[1:]
    with torch.no_grad():
        logits = model(torch.tensor([[prompt[0], *tokens]])).logits[0].double()
    wanted = torch.log_softmax(logits, -1)
    for at, choice in enumerate(choices):
        assert choice.logprob == pytest.approx(float(wanted[at, choice.token]), abs=1e-4)
        best = torch.topk(wanted[at], 3)
        assert [score for _, score in choice.best] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_draws_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    write_model(tmp_path)
    engine = engine_of(tmp_path)
    drawn = Submit(0, list(range(5, 30)), 20, [], 1.0, 0.9, 42)
    others = [Submit(i, list(range(i, i + 40)), 20, [], 1.0, 1.0, i) for i in range(5, 10)]
    alone = tokens_of(run(engine, [drawn])[0])
    assert tokens_of(run(engine, [*others, drawn])[0]) == alone
    assert len(set(alone)) > 5


@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_frequencies_are_those_of_transformers(kind: str) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    options = {
        "linear": {"factor": 4.0},
        "llama3": CHANGES[2]["rope_scaling"] | {"original_max_position_embeddings": 64},
    }[kind]
    theirs = configured("llama", 100, head_dim=64, rope_scaling=options | {"rope_type": kind})
    wanted, _ = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu")
    own = {name: value for name, value in options.items() if name != "rope_type"}
    found = frequencies(Rotation(10000.0, kind, own), 64)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5)


def write(folder: Path, **changes: Any) -> None:
    table = configured("llama", 50).to_dict() | changes
    (folder / "config.json").write_text(json.dumps(table))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "bert"}, "'bert' cannot be served; known are gpt2, llama, mistral, qwen2"),
        ({"hidden_act": "tanh"}, "activation 'tanh'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn'"),
        ({"hidden_size": "32"}, r"config\.json: hidden_size must be a whole number .* not '32'"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a whole number of at least 1"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers must be a whole number"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a number of at least 0, not 'small'"),
        ({"eos_token_id": "end"}, r"config\.json: invalid literal"),
    ],
)
def test_what_cannot_be_served_is_named(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    write(tmp_path, **changes)
    with pytest.raises(ModelError, match=words):
        load_config(tmp_path)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    write_model(tmp_path)
    table = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(table | {"intermediate_size": 64}))
    with pytest.raises(ModelError, match=r"mlp\.up_proj\.weight has the shape \[48, 32\]"):
        engine_of(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors: load: tensor"):
        engine_of(tmp_path)
    weights.unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors"):
        engine_of(tmp_path)


def test_stops_of_the_generation_config_come_first(tmp_path: Path) -> None:
    write(tmp_path, eos_token_id=3)
    assert load_config(tmp_path).stops == (3,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert load_config(tmp_path).stops == (5, 6)
