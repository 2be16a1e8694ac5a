"""Chat templates: messages to the text that a model was trained on, by Jinja in its sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from oneflow.core.errors import ArgumentError, ModelError
from oneflow.serving.language.config import read_json

SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class ChatTemplate:
    """The template of a folder. Raises ModelError for one that is no template."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        table = read_json(path) if path.exists() else {}
        source = _source(folder, table)
        self._special = {name: _text(table[name]) for name in SPECIAL if table.get(name)}
        self._template = None
        if source is not None:
            try:
                self._template = _environment().from_string(source)
            except jinja2.TemplateError as error:
                raise ModelError(f"{folder}: its chat template is wrong: {error}") from None

    @property
    def is_there(self) -> bool:
        return self._template is not None

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """The prompt that asks for the next message. Raises ArgumentError for messages that the
        template refuses."""
        if self._template is None:
            raise ArgumentError("this model has no chat template; use /v1/completions")
        try:
            given = {"messages": list(messages), "add_generation_prompt": True, "tools": None}
            return str(self._template.render(given | self._special))
        except jinja2.TemplateError as error:
            raise ArgumentError(f"the chat template refuses the messages: {error}") from None
        except (TypeError, ValueError, LookupError) as error:  # of the template's own expressions
            raise ArgumentError(f"the chat template cannot take the messages: {error}") from None


def _source(folder: Path, table: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    found = table.get("chat_template")
    if isinstance(found, list):  # several with names
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _text(token: object) -> str:
    """A special token: its text, or a table that has it."""
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _environment() -> ImmutableSandboxedEnvironment:
    """The functions and filters that templates of Hugging Face folders expect."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
