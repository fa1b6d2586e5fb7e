"""Reasoning items that a provider wants back untouched, put together from their deltas."""

from typing import Any

import orjson

_JOINED = ("text", "summary", "data")


class ReasoningDetails:
    """`reasoning_details` of a reply: pieces of one type and index are one item."""

    def __init__(self) -> None:
        self._items: dict[tuple[object, object], dict[str, Any]] = {}

    def add(self, details: object) -> None:
        for piece in details if isinstance(details, list) else []:
            if not isinstance(piece, dict):
                continue
            fields: dict[str, Any] = piece
            item = self._items.setdefault((str(fields.get("type")), str(fields.get("index"))), {})
            for name, value in fields.items():
                if name in _JOINED and isinstance(value, str) and isinstance(item.get(name), str):
                    item[name] += value
                elif value is not None or name not in item:
                    item[name] = value

    def encode(self) -> str:
        """The JSON to merge into the message; empty where no item is signed or encrypted: then none must go back."""
        items = list(self._items.values())
        if not any(item.get("signature") or item.get("data") for item in items):
            return ""
        return orjson.dumps({"reasoning_details": items}).decode()
