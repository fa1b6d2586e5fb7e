"""A probe of servers that do less than they could."""

from models_wire import raw_server

from agent.models.probe import probe
from agent.models.resolve import Target, choose
from agent.models.script_wire import Answer

WHOLE = b'{"choices":[{"message":{"role":"assistant","content":"Hello."},"finish_reason":"stop"}]}'


async def test_a_server_that_neither_streams_nor_counts_is_told_apart() -> None:
    async with raw_server([Answer(200, (("content-type", "application/json"),), WHOLE)]) as server:
        target = choose("vllm/m", {"VLLM_BASE_URL": server.base_url})
        assert isinstance(target, Target)
        found = {finding.name: finding for finding in await probe(target, None)}
    assert found["answer"].ok
    assert not found["streaming"].ok and not found["streaming"].needed
    assert (found["usage"].ok, found["usage"].text) == (False, "not reported; tokens are estimated from bytes")
    assert not found["tool calls"].ok and found["tool calls"].needed
