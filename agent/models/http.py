"""The client of a model server, whatever its protocol: one kept connection pool, one attempt a call, every end of it a
value.

It goes to the transport of httpx directly: cookies, redirects and proxies of the environment are not wanted here."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random
from time import monotonic, time
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from pydantic import SecretStr

from agent.models.client import BadAddress, BadKey, ModelRequest, OnDelta, estimated_usage
from agent.models.faults import TOLD_CAP_S, Fault, fault_of_response, told_s, wait_ms
from agent.models.settle import failed, settle
from agent.models.verdicts import Faulty, Reader
from agent.models.wires import Wire
from eventlog.outcomes import ModelFailed, ModelReplied

if TYPE_CHECKING:
    import httpx

_ERROR_BODY = 64 << 10
_ERROR_BODY_S = 10.0
"""How long what a refusal says may take to come."""
_STALE_S = 1.0
"""A kept connection that the server had closed shows it sooner than this."""
_DRAIN_S = 0.1
"""How long the end of a body may follow its end mark before the connection is given up."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds."""

    connect_s: float = 10.0
    silence_s: float = 300.0
    """To the first byte, and between two."""
    total_s: float = 3600.0


class _Sending:
    """How far a request came, as the transport tells it."""

    def __init__(self) -> None:
        self._fresh = False
        """The connection was made for it."""
        self._sent: float | None = None
        """When it was on its way whole."""

    async def take(self, step: str, _: object) -> None:
        match step:
            case "connection.connect_tcp.complete":
                self._fresh = True
            case "http11.send_request_body.complete":
                self._sent = monotonic()

    @property
    def arrived(self) -> bool:
        """Where no answer came: whether the server may have worked on it, rather than have closed the connection
        before."""
        return self._sent is not None and (self._fresh or monotonic() - self._sent > _STALE_S)


class HttpModel:
    """A ModelClient. Opens no connection before the first call; `close` it, or use it as a context."""

    def __init__(
        self,
        wire: Wire,
        base_url: str,
        key: SecretStr | None = None,
        *,
        key_name: str = "",
        random: Random | None = None,
        timeouts: Timeouts | None = None,
        connections: int = 64,
    ) -> None:
        """Raises BadAddress, BadKey. `key_name` is where a person sets the key: only for messages."""
        self._shown = shown_address(base_url)
        self._wire = wire
        self._url = base_url.rstrip("/") + wire.path
        self._secret = key.get_secret_value() if key is not None else ""
        if not all(" " < sign <= "~" for sign in self._secret):
            raise BadKey(f"{key_name or 'The API key'} holds characters that no key has; set it again.")
        self._key_name = key_name
        self._random = random or Random()
        self._timeouts = timeouts or Timeouts()
        self._connections = connections
        self._transport: httpx.AsyncHTTPTransport | None = None

    def __repr__(self) -> str:
        return f"HttpModel({self._shown!r}, {self._wire.path!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = None

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelReplied | ModelFailed:
        """One attempt. Raises nothing for what a server or a network does; a cancelled one closes its connection."""
        import httpx

        begin = monotonic()
        stream = self._wire.reader(request.call_id)
        sending = _Sending()
        response: httpx.Response | None = None
        try:
            async with asyncio.timeout(self._timeouts.total_s):
                response = await self._open().handle_async_request(self._post(request.body, sending))
                if not 200 <= response.status_code < 300:
                    return await self._refusal(response, request)
                return await self._read(response, stream, request, on_delta, begin)
        except TimeoutError:
            fault = Fault("timeout", f"{self._shown} did not finish in {self._timeouts.total_s:g} s.", True)
            return self._broken(fault, stream, request)
        except httpx.HTTPError as error:
            return self._unanswered(error, request, sending)
        finally:
            if response is not None:
                with contextlib.suppress(httpx.HTTPError):
                    await response.aclose()

    def _open(self) -> "httpx.AsyncHTTPTransport":
        if self._transport is None:
            import httpx

            self._transport = httpx.AsyncHTTPTransport(
                verify=self._url.startswith("https:"),
                trust_env=False,
                limits=httpx.Limits(max_connections=self._connections, keepalive_expiry=60),
                socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            )
            times = httpx.Timeout(self._timeouts.silence_s, connect=self._timeouts.connect_s, pool=None)
            self._times = times.as_dict()
            self._address = httpx.URL(self._url)
            self._headers = [
                (b"accept", b"text/event-stream, application/json"),
                (b"accept-encoding", b"identity"),
                (b"content-type", b"application/json"),
                (b"user-agent", b"thalia"),
                *self._wire.headers(self._secret),
            ]
        return self._transport

    def _post(self, body: bytes, sending: _Sending) -> "httpx.Request":
        import httpx

        extensions = {"timeout": self._times, "trace": sending.take}
        return httpx.Request("POST", self._address, headers=self._headers, content=body, extensions=extensions)

    async def _read(
        self, response: "httpx.Response", stream: Reader, request: ModelRequest, on_delta: OnDelta, begin: float
    ) -> ModelReplied | ModelFailed:
        import httpx

        first: float | None = None
        chunks = _chunks(response)
        try:
            async for chunk in chunks:
                first = first or monotonic()
                for delta in stream.feed(chunk):
                    on_delta(delta)
                if stream.ended:
                    break
            else:
                first = first or monotonic()
        except httpx.TimeoutException:
            fault = Fault("timeout", f"{self._shown} was silent for {self._timeouts.silence_s:g} s.", True)
            return self._broken(fault, stream, request)
        except httpx.HTTPError:
            fault = Fault("cut", f"{self._shown} broke the connection in the middle of the reply.", True)
            return self._broken(fault, stream, request, begin, first)
        ended = monotonic()
        if stream.ended:
            await _drain(chunks)
        return self._settle(stream, request, begin, first or ended, ended)

    def _settle(
        self, stream: Reader, request: ModelRequest, begin: float, first: float, end: float
    ) -> ModelReplied | ModelFailed:
        verdict = stream.finish()
        if isinstance(verdict, Faulty):
            fault = Fault(verdict.fault.kind, self._clean(verdict.fault.text), verdict.fault.retry)
            verdict = Faulty(fault, verdict.usage, verdict.output_bytes)
        first_ms, total_ms = round(1000 * (first - begin)), round(1000 * (end - begin))
        return settle(verdict, request, lambda: self._wait({}, request), first_ms, total_ms)

    def _broken(
        self, fault: Fault, stream: Reader, request: ModelRequest, begin: float = 0.0, first: float | None = None
    ) -> ModelReplied | ModelFailed:
        """A reply that had said how it ended before the connection broke is whole."""
        verdict = stream.finish()
        if isinstance(verdict, Faulty):
            verdict = Faulty(fault, verdict.usage, verdict.output_bytes)
        now = monotonic()
        first_ms = round(1000 * ((first or now) - begin))
        return settle(verdict, request, lambda: self._wait({}, request), first_ms, round(1000 * (now - begin)))

    async def _refusal(self, response: "httpx.Response", request: ModelRequest) -> ModelFailed:
        """An answer that is no success. Its body may be cut; the status stands."""
        import httpx

        body = b""
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(_ERROR_BODY_S):
                async for chunk in _chunks(response):
                    body += chunk
                    if len(body) > _ERROR_BODY:
                        break
        headers = {name.lower(): value for name, value in response.headers.items()}
        fault = fault_of_response(response.status_code, headers, body, self._key_name)
        told = told_s(headers, time())
        if told is not None and told > TOLD_CAP_S:
            fault = Fault(fault.kind, f"{fault.text} It asks to wait {told:.0f} s; resume the session then.", False)
        fault = Fault(fault.kind, self._clean(fault.text), fault.retry)
        return failed(fault, lambda: self._wait(headers, request), response.status_code)

    def _unanswered(
        self, error: "httpx.HTTPError", request: ModelRequest, sending: _Sending
    ) -> ModelReplied | ModelFailed:
        """No answer came as far as its body. The first time that a connection breaks so, it was most likely a kept one
        that the server had closed: the next attempt need not wait."""
        import httpx

        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            fault = Fault("network", f"No connection to {self._shown}; is the server running?", True)
        elif isinstance(error, httpx.TimeoutException):
            fault = Fault("timeout", f"{self._shown} gave no answer in {self._timeouts.silence_s:g} s.", True)
            return settle(Faulty(fault, None, 0), request, lambda: self._wait({}, request), 0, 0)
        else:
            fault = Fault("network", f"{self._shown} closed the connection before it answered.", True)
            spent = estimated_usage(len(request.body), 0) if sending.arrived else None
            first = request.sent_before == 0
            return settle(Faulty(fault, spent, 0), request, lambda: 0 if first else self._wait({}, request), 0, 0)
        return failed(fault, lambda: self._wait({}, request))

    def _wait(self, headers: dict[str, str], request: ModelRequest) -> int:
        return wait_ms(headers, request.sent_before, self._random, time())

    def _clean(self, text: str) -> str:
        return text.replace(self._secret, "[key]") if self._secret else text


def shown_address(base_url: str) -> str:
    """Scheme, host, port and path: no user, no password, no query. Raises BadAddress."""
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError:
        raise BadAddress("The base URL of the model server cannot be read; it looks like https://host/v1.") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise BadAddress("The base URL of the model server must begin with http:// or https:// and name a host.")
    if parts.username or parts.password:
        raise BadAddress("The base URL of the model server holds a user or a password; give it as the API key.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}"


def _chunks(response: "httpx.Response") -> AsyncIterator[bytes]:
    """The body as it comes; decoded where a server compresses though it was told not to."""
    if response.headers.get("content-encoding", "identity") != "identity":
        return response.aiter_bytes()
    return response.aiter_raw()


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read to the end of the body, so that the connection can be used again; a server that dawdles loses it."""
    import httpx

    with contextlib.suppress(httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in chunks:
                continue
