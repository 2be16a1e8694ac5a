"""Masks of secrets in a job's command: others see all of it but what looks like a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
MAX_WORD_CHARS = 4096  # of a longer word the rest is hidden, whatever it is
MAX_NAME_CHARS = 256
_ENDINGS = ("token", "secret", "password", "passwd", "passphrase", "credential", "credentials")
_KEYS = ("key", "apikey", "accesskey", "secretkey", "privatekey")
_PARTS = re.compile(r"[-_.]+")
_URL = re.compile(r"(://[^/\s:@]{0,256}:)[^/\s@]{1,1024}@")
_KNOWN = re.compile(  # secrets that say themselves what they are
    r"\b(?:oft_|gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[baprs]-|AKIA)[\w-]{8,}|"
    r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*",
    re.DOTALL,
)


def masked_words(argv: Iterable[str]) -> list[str]:
    """The words of a command; the value after a flag that is named like a secret goes too."""
    found: list[str] = []
    hides_next = False
    for word in argv:
        is_value = hides_next and not word.startswith("--")
        found.append(HIDDEN if is_value else masked(word))
        hides_next = not is_value and word.startswith("-") and is_secret_name(word)
    return found


def masked(word: str) -> str:
    """One word, without the secret in it."""
    if len(word) > MAX_WORD_CHARS:
        word = word[:MAX_WORD_CHARS] + HIDDEN
    name, equals, _ = word.partition("=")
    if equals and is_secret_name(name):
        return f"{name}={HIDDEN}"
    return _KNOWN.sub(HIDDEN, _URL.sub(rf"\g<1>{HIDDEN}@", word))


def is_secret_name(name: str) -> bool:
    """Whether a flag or variable of this name most likely holds a secret."""
    parts = _PARTS.split(name[:MAX_NAME_CHARS].lower())
    return any(part.endswith(_ENDINGS) or part in _KEYS for part in parts)
