"""The seam between an agent and a model: one request in, one outcome out, deltas for screens on the way."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from eventlog.events import ContextSet, ModelRoute
from eventlog.ids import CallId
from eventlog.messages import Usage
from eventlog.outcomes import ModelFailed, ModelReplied

BYTES_A_TOKEN = 4
"""What a token is taken for where the provider reports none."""


@dataclass(frozen=True, slots=True)
class Prices:
    """USD per million tokens. None is unknown, never free."""

    input_usd: float | None = None
    cached_usd: float | None = None
    output_usd: float | None = None
    cache_write_usd: float | None = None
    """Of input that the provider put into its cache. None here is what any input costs."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    call_id: CallId
    """Of the model call: the ids of the tool calls in its reply follow from it."""
    body: bytes
    """What a request builder made; sent as it is."""
    prices: Prices = Prices()
    sent_before: int = 0
    """Attempts of this call already made; the waits grow with it."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    index: int
    """From 1, in the order of the reply."""
    name: str
    """As far as it has come; may be empty."""


Delta = TextDelta | ReasoningDelta | ToolCallStarted
OnDelta = Callable[[Delta], None]


class ModelClient(Protocol):
    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelReplied | ModelFailed:
        """One attempt. Raises nothing for what a server or a network does; a cancelled one closes its connection."""
        ...


class ModelError(Exception):
    """What a person has to set right before any request can be sent."""


class BadAddress(ModelError):
    """The base URL is none."""


class BadKey(ModelError):
    """The API key cannot stand in a header. Its value is never in the text."""


class BadScript(ModelError):
    """A script of a scripted model cannot be read."""


def ignore_delta(delta: Delta) -> None:
    """For callers without a screen."""


def cost_usd(usage: Usage, prices: Prices) -> float | None:
    """Of one call; None where a price is unknown. Tokens that a cache gave or took are part of `input`."""
    if prices.input_usd is None or prices.cached_usd is None or prices.output_usd is None:
        return None
    write_usd = prices.input_usd if prices.cache_write_usd is None else prices.cache_write_usd
    fresh = max(usage.input - usage.cached - usage.cache_written, 0)
    micro = fresh * prices.input_usd + usage.cached * prices.cached_usd + usage.cache_written * write_usd
    return (micro + usage.output * prices.output_usd) / 1e6


def most_usd(request_bytes: int, output_tokens: int, prices: Prices) -> float:
    """What one call may cost: no input cached before, and all of it written to the cache where that is dearer. 0 where
    no price is known."""
    if prices.input_usd is None or prices.output_usd is None:
        return 0.0
    input_usd = max(prices.input_usd, prices.cache_write_usd or 0.0)
    return (request_bytes / BYTES_A_TOKEN * input_usd + output_tokens * prices.output_usd) / 1e6


def prices_of(context: ContextSet | ModelRoute) -> Prices:
    return Prices(context.input_usd, context.cached_usd, context.output_usd, context.cache_write_usd)


def estimated_usage(request_bytes: int, output_bytes: int) -> Usage:
    return Usage(input=request_bytes // BYTES_A_TOKEN, output=output_bytes // BYTES_A_TOKEN)
