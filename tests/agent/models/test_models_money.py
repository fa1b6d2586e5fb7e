"""What a call costs, and what a server may say of it."""

import json

import orjson
import pytest

from agent.models.client import Prices, cost_usd, most_usd, prices_of
from agent.models.verdicts import Finished
from agent.models.wires import WIRES
from configs.models import Protocol
from eventlog.events import ContextSet
from eventlog.ids import CallId
from eventlog.messages import Usage

USED = Usage(input=1000, cached=400, cache_written=100, output=50)
LARGE = 10**30
"""A count that no 64 bits hold."""


def reply_of(protocol: Protocol, count: object) -> bytes:
    """A whole reply whose every count is this one."""
    match protocol:
        case "chat":
            usage = {"prompt_tokens": count, "completion_tokens": count, "total_tokens": count}
            usage["prompt_tokens_details"] = {"cached_tokens": count, "cache_write_tokens": count}
            choice = {"index": 0, "message": {"content": "Yes."}, "finish_reason": "stop"}
            reply: dict[str, object] = {"choices": [choice], "usage": usage}
        case "responses":
            usage = {
                "input_tokens": count,
                "output_tokens": count,
                "output_tokens_details": {"reasoning_tokens": count},
            }
            said = {"type": "message", "content": [{"type": "output_text", "text": "Yes."}]}
            reply = {"object": "response", "status": "completed", "output": [said], "usage": usage}
        case "messages":
            names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
            content = [{"type": "text", "text": "Yes."}]
            reply = {
                "type": "message",
                "stop_reason": "end_turn",
                "content": content,
                "usage": dict.fromkeys(names, count),
            }
    return json.dumps(reply).encode()


def usage_of(protocol: Protocol, count: object) -> Usage:
    reader = WIRES[protocol].reader(CallId("c1"))
    reader.feed(reply_of(protocol, count))
    verdict = reader.finish()
    assert isinstance(verdict, Finished) and verdict.usage is not None, verdict
    return verdict.usage


def test_what_goes_into_the_cache_has_a_price_of_its_own_where_there_is_one() -> None:
    assert cost_usd(USED, Prices(1.0, 0.1, 2.0, 1.25)) == pytest.approx((500 + 40 + 125 + 100) / 1e6)
    assert cost_usd(USED, Prices(1.0, 0.1, 2.0)) == pytest.approx((600 + 40 + 100) / 1e6), "else that of any input"
    assert cost_usd(USED, Prices(1.0, None, 2.0, 1.25)) is None


def test_no_call_costs_more_than_what_it_may_cost() -> None:
    for prices in (Prices(1.0, 0.1, 2.0, 1.25), Prices(1.0, 0.1, 2.0), Prices(1.0, 0.1, 2.0, 0.5)):
        for cached, written in ((0, 0), (0, 1000), (400, 600)):
            cost = cost_usd(Usage(input=1000, cached=cached, cache_written=written, output=50), prices)
            assert cost is not None and cost <= most_usd(4000, 50, prices)
    assert most_usd(4000, 50, Prices(None, None, 2.0)) == 0.0


def test_the_prices_of_a_call_are_those_of_its_context() -> None:
    context = ContextSet(
        builder="chat/1", model="p/m", wire_model="m", system="", tools="", parameters="", window=1,
        input_usd=1.0, cached_usd=0.1, output_usd=2.0, cache_write_usd=1.25,
    )  # fmt: skip
    assert prices_of(context) == Prices(1.0, 0.1, 2.0, 1.25)


@pytest.mark.parametrize("protocol", WIRES)
def test_counts_that_no_log_can_hold_are_cut_down(protocol: Protocol) -> None:
    usage = usage_of(protocol, LARGE)
    assert usage.input >= 1 << 40 and usage.output == 1 << 40
    whole = sum((usage for _ in range(10_000)), Usage())
    assert max(whole.model_dump().values()) < 1 << 63, "nor is the sum of a long session too large"
    assert orjson.loads(usage.model_dump_json()) == usage.model_dump()


@pytest.mark.parametrize("protocol", WIRES)
@pytest.mark.parametrize("count", [-LARGE, -1, None, "many", [], 0])
def test_counts_that_are_none_are_nothing(protocol: Protocol, count: object) -> None:
    assert usage_of(protocol, count) == Usage()
