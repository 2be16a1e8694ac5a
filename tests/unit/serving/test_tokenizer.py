"""Tokens to text as they come, beside whole texts; stop words wherever they are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from oneflow.core.errors import ArgumentError, ModelError
from oneflow.serving.language.chat import ChatTemplate
from oneflow.serving.language.tokenizer import Detokenizer, StopFinder, Tokenizer

from .models import write_tokenizer

TEXT = "Größe 你好 🙂🚀 naïve: The quick  brown\nfox 👩‍👩‍👧 end"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(found)
    return found


def test_pieces_of_text_are_whole_characters_and_make_the_text(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    tokens = tokenizer.encode(TEXT)
    made = Detokenizer(tokenizer)
    parts = [made.add(token) for token in tokens]
    assert "".join(parts) == TEXT
    assert "" in parts and not any("\ufffd" in part for part in parts)
    assert b"".join(map(tokenizer.bytes_of, tokens)) == TEXT.encode()


def test_half_a_character_at_the_end_is_not_told(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    tokens = [t for letter in "🙂" for t in tokenizer.encode(letter)]
    made = Detokenizer(tokenizer)
    assert "".join(made.add(token) for token in [*tokenizer.encode("a"), *tokens[:-1]]) == "a"


def test_bytes_that_are_no_text_come_as_the_whole_text_has_them(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    of_byte = {tokenizer.bytes_of(i): i for i in range(tokenizer.words)}
    tokens = [of_byte[bytes([b])] for b in (0x41, 0xFF, 0xE4, 0x42, 0xF0, 0x9F, 0x43)]
    made = Detokenizer(tokenizer)
    assert "".join(map(made.add, tokens)) == tokenizer.decode(tokens)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_stop_words_are_found_however_the_text_is_cut(size: int) -> None:
    text, stops = "one STO STOP two END", ["END", "STOP"]
    finder, told, is_found = StopFinder(stops), "", False
    for at in range(0, len(text), size):
        more, is_found = finder.add(text[at : at + size])
        told += more
        if is_found:
            break
    assert (told, is_found) == ("one STO ", True)


def test_the_begin_of_a_stop_word_is_told_at_the_end() -> None:
    finder = StopFinder(["STOP"])
    assert finder.add("a ST") == ("a ", False)
    assert finder.end() == "ST"


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
        "{{ bos_token }}{%- for m in messages %}\n"
        "  {%- if loop.index0 > 1 %}{% break %}{% endif %}\n"
        "{{ m | tojson }}{{ eos_token }}\n{%- endfor %}",
    ],
)
def test_chat_templates_give_the_texts_of_transformers(folder: Path, template: str) -> None:
    from transformers import AutoTokenizer

    messages = [{"role": r, "content": f" {r} says ü "} for r in ("system", "user", "assistant")]
    (folder / "chat_template.jinja").write_text(template)
    theirs = AutoTokenizer.from_pretrained(folder)
    wanted = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate(folder).render(messages) == wanted
    (folder / "chat_template.jinja").unlink()


def test_templates_refuse_and_cannot_reach_python(tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    path.write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ArgumentError, match="roles must alternate"):
        ChatTemplate(tmp_path).render([])
    path.write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ArgumentError, match="refuses"):
        ChatTemplate(tmp_path).render([])
    path.write_text("{% for %}")
    with pytest.raises(ModelError, match="chat template is wrong"):
        ChatTemplate(tmp_path)
