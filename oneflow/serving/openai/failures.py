"""Errors as OpenAI's clients read them: a status, and a JSON object that names the mistake."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse


class Failure(Exception):
    """An answer that is an error. parameter: the wrong field of the request. code: for programs.

    retry_after_s: when to ask again, if that helps.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        parameter: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.code, self.parameter, self.retry_after_s = code, parameter, retry_after_s

    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 404: "invalid_request_error", 429: "rate_limit_error"}
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        error = {
            "message": self.message,
            "type": kinds.get(self.status, usual),
            "param": self.parameter,
            "code": self.code,
        }
        return {"error": error}

    def response(self) -> JSONResponse:
        again = self.retry_after_s
        headers = {} if again is None else {"Retry-After": str(again)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def wrong(message: str, parameter: str | None = None, code: str | None = None) -> Failure:
    """The failure of a request that its client has to change."""
    return Failure(400, message, code, parameter)
