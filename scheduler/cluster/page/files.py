"""The files of the page: one HTML file, its style and its modules, and the policy they run under.

There is no build step: the browser gets the files as they lie here, at `/ui/<name>`. The policy
lets it load scripts and styles from this scheduler alone, run nothing inline, and (with trusted
types) never read a string as HTML or as code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from oneflow.services.metrics_http import Answer

FOLDER = Path(__file__).parent
PAGE = "page.html"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src data:",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
HEADERS = {
    "Content-Security-Policy": "; ".join(POLICY),
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@cache
def files() -> Mapping[str, Answer]:
    """Return the answers to the paths of the page's files; read once."""
    found = {}
    for path in sorted(FOLDER.iterdir()):
        if (kind := TYPES.get(path.suffix)) is not None:
            found[f"/ui/{path.name}"] = Answer(200, path.read_bytes(), kind, HEADERS)
    page = found.pop(f"/ui/{PAGE}")
    return found | {"/": page, "/ui": page}
