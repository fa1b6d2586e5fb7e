"""The variables that sessions were started with, kept for when their process has to be replaced.

They may hold keys, so they stand in a file without a name that the supervisor made; a new gateway inherits it. The
first 16 bytes say where the present content is: a gateway killed while it writes leaves the one before."""

import os
from collections.abc import Mapping
from typing import Any

import orjson

_HEAD = 16


class Vault:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._content: dict[str, Any] = self._read()

    def variables_of(self, session: str) -> Mapping[str, str]:
        """Those of the daemon's own start, for a session that an earlier daemon hosted."""
        return self._content["sessions"].get(session, self._content["default"])

    def keep(self, session: str, variables: Mapping[str, str]) -> None:
        self._content["sessions"][session] = dict(variables)
        self._write()

    def forget(self, session: str) -> None:
        if self._content["sessions"].pop(session, None) is not None:
            self._write()

    def keep_default(self, variables: Mapping[str, str]) -> None:
        self._content["default"] = dict(variables)
        self._write()

    def _read(self) -> dict[str, Any]:
        start, size = self._where()
        if not size:
            return {"default": {}, "sessions": {}}
        return orjson.loads(os.pread(self._descriptor, size, start))

    def _write(self) -> None:
        data = orjson.dumps(self._content)
        start, size = self._where()
        new = _HEAD if size == 0 or start >= _HEAD + len(data) else start + size
        os.pwrite(self._descriptor, data, new)
        os.pwrite(self._descriptor, new.to_bytes(8, "big") + len(data).to_bytes(8, "big"), 0)

    def _where(self) -> tuple[int, int]:
        head = os.pread(self._descriptor, _HEAD, 0)
        return int.from_bytes(head[:8], "big"), int.from_bytes(head[8:], "big")
