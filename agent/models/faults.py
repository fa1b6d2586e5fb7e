"""What went wrong with a model call, from what the server said; and how long to wait. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from random import Random
from typing import Any

import orjson

from eventlog.outcomes import ModelFault

BACKOFF_BASE_S = 0.5
BACKOFF_CAP_S = 30.0
TOLD_CAP_S = 600.0
"""A server that asks for a longer wait is taken to be unavailable."""
_TOLD_SPREAD = 0.25
_SHOWN = 500

_REASONING_REFUSED = re.compile(
    r"reasoning\.encrypted_content|encrypted content is not supported|['\"`(]include\b", re.IGNORECASE
)
"""In what is said of a request that asks for it, where the model does not reason or the server does not know it."""
_LONG_CODES = frozenset({"context_length_exceeded", "string_above_max_length", "model_context_window_exceeded"})
_REFUSED_CODES = frozenset({"invalid_prompt", "data_residency_mismatch", "model_not_found"})
_LONG_TEXTS = (
    "maximum context length",
    "context length exceeded",
    "exceeds the context window",
    "context window exceeds",
    "exceed context limit",
    "exceeds the available context size",
    "exceed_context_size",
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "input length and `max_tokens` exceed",
    "too many tokens",
    "too large for model with",
    "maximum prompt length",
    "exceeds the maximum number of tokens",
    "exceeds the limit of",
    "longer than the model's context length",
    "greater than the context length",
    "reduce the length of the messages",
)


@dataclass(frozen=True, slots=True)
class Fault:
    kind: ModelFault
    text: str
    """One sentence for a person."""
    retry: bool


def fault_of_response(status: int, headers: Mapping[str, str], body: bytes, key_name: str = "") -> Fault:
    """Of an answer that is no success. Header names in lower case."""
    said, code = said_in(body)
    told = headers.get("x-should-retry", "").strip().lower()
    fault = _by_status(status, said, code, key_name)
    return Fault(fault.kind, fault.text, told == "true") if told in {"true", "false"} else fault


def fault_of_error(error: object) -> Fault:
    """Of an error object that came with status 200, in the stream or in its place."""
    said, code = _said(error)
    status = _status_of(error)
    if status is not None and status >= 400 and code != "tool_use_failed":
        return _by_status(status, said, code, "")
    if code == "insufficient_quota":
        return Fault("rate_limited", _sentence("The model server broke off: the quota is used up", said), False)
    if "rate_limit" in code or "rate limit" in said.lower():
        return Fault("rate_limited", _sentence("The model server broke off: too many requests", said), True)
    if is_too_long(said, code):
        return Fault("context_too_long", _sentence("The conversation is too long for the model", said), False)
    if code == "tool_use_failed":
        return Fault("malformed", _sentence("The model wrote a call that its server could not read", said), True)
    if "overloaded" in code or "overloaded" in said.lower():
        return Fault("overloaded", _sentence("The model server broke off: it is overloaded", said), True)
    if "invalid_request" in code or "policy" in code or code in _REFUSED_CODES:
        return Fault("refused", _sentence("The model server refused the request", said), False)
    return Fault("server", _sentence("The model server broke off with an error", said), True)


def wait_ms(headers: Mapping[str, str], sent_before: int, random: Random, now_s: float) -> int:
    """Before the next attempt. What the server asks for is never undercut and is spread by up to a quarter, so that
    many agents do not come back as one; else full jitter under 0.5 s times 2^n, at most 30 s."""
    told = told_s(headers, now_s)
    if told is not None:
        return round(1000 * told * (1 + _TOLD_SPREAD * random.random()))
    ceiling = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2 ** min(sent_before, 10))
    return round(1000 * ceiling * random.random())


def told_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Seconds that the server asks to wait; None where it says nothing that can be understood."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        seconds = _number(headers.get(name))
        if seconds is not None:
            return max(seconds / unit, 0.0)
    try:
        # By the server's own clock where it tells it: ours may have been set a day off.
        sent = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else now_s
        return max(parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - sent, 0.0)
    except (ValueError, TypeError, OverflowError):
        return None


def is_too_long(said: str, code: str) -> bool:
    lower = said.lower()
    return code in _LONG_CODES or any(text in lower for text in _LONG_TEXTS)


def said_in(body: bytes) -> tuple[str, str]:
    """The message and the code or type of an error body; its beginning where it is no JSON."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        text = body[:_SHOWN].decode("utf-8", "replace").strip()
        return ("a page in HTML" if text[:1] == "<" else text), ""
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        return _said(value.get("error") or value)
    return str(value)[:_SHOWN], ""


def _by_status(status: int, said: str, code: str, key_name: str) -> Fault:
    if status in {400, 413, 422} and (status == 413 or is_too_long(said, code)):
        return Fault("context_too_long", _sentence("The conversation is too long for the model", said), False)
    if status == 429:
        spent = code == "insufficient_quota"
        return Fault("rate_limited", _sentence("The model server limits the rate (429)", said), not spent)
    if status in {503, 529}:
        return Fault("overloaded", _sentence(f"The model server is overloaded ({status})", said), True)
    if status >= 500:
        return Fault("server", _sentence(f"The model server failed ({status})", said), True)
    if status == 408:
        return Fault("timeout", _sentence("The model server gave up waiting (408)", said), True)
    if status in {401, 403}:
        hint = f"; check {key_name}" if key_name else "; check the API key"
        return Fault("refused", _sentence(f"The model server refused the key ({status}){hint}", said), False)
    if status in {400, 422} and _REASONING_REFUSED.search(said):
        what = (
            f"The model server gives no encrypted reasoning ({status}); set reasons = false for its [providers.NAME] "
            "in your settings and choose the model again with -m"
        )
        return Fault("refused", _sentence(what, said), False)
    if 300 <= status < 400:
        return Fault("refused", f"The model server answers with a redirect ({status}); correct the base URL.", False)
    if status == 409:
        return Fault("server", _sentence("The model server reports a conflict (409)", said), True)
    return Fault("refused", _sentence(f"The model server refused the request ({status})", said), False)


def _said(error: object) -> tuple[str, str]:
    if not isinstance(error, dict):
        return str(error)[:_SHOWN], ""
    fields: dict[str, Any] = error
    code = next((str(fields[name]) for name in ("code", "type") if isinstance(fields.get(name), str)), "")
    said = next((str(fields[name]) for name in ("message", "detail", "error") if fields.get(name)), "")
    if isinstance(param := fields.get("param"), str) and param not in said:
        said = f"{said} ({param})"
    metadata = fields.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return (f"{said}: {raw}" if isinstance(raw, str) and raw else said)[:_SHOWN], code


def _status_of(error: object) -> int | None:
    if not isinstance(error, dict):
        return None
    fields: dict[str, Any] = error
    found = (fields.get(name) for name in ("status_code", "status", "code"))
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)


def _sentence(what: str, said: str) -> str:
    said = " ".join(said.split())
    return f"{what}: {said}" if said else f"{what}."


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
