"""A body before it is stored: valid UTF-8, no secret."""

from typing import Any

from pydantic_core import PydanticSerializationError

from eventlog.codec import decode_body, encode_body
from eventlog.events import Body, Draft
from eventlog.redact import Redactor
from eventlog.seams import Prepared

_VERBATIM = frozenset(
    {"kind", "role", "request_hash", "binding", "before", "after", "commit", "snapshot", "base", "result"}
)
"""Fields that we fill ourselves with hashes and names of kinds."""


def prepare(draft: Draft, redactor: Redactor) -> Prepared:
    """The stored form. A body that needs nothing comes back as it is."""
    try:
        encoded = encode_body(draft.body)
    except (PydanticSerializationError, UnicodeEncodeError):
        encoded = None
    if encoded is not None and not redactor.suspects(encoded.decode()):
        return Prepared(draft, encoded)
    body = _clean_body(draft.body, redactor)
    return Prepared(draft.model_copy(update={"body": body}), encode_body(body))


def _clean_body(body: Body, redactor: Redactor) -> Body:
    def walk(node: Any, name: str) -> Any:
        if isinstance(node, str):
            if name in _VERBATIM:
                return node
            text = node.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            return redactor.clean_known(text) if name == "data" else redactor.clean(text)
        if isinstance(node, dict):
            return {key: walk(value, key) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [walk(value, name) for value in node]
        return node

    return decode_body(walk(body.model_dump(mode="python"), ""))
