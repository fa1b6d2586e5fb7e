"""The vendors' own libraries talk to the scripted server: what it streams is what they expect, and what they send back
of it passes its checks."""

from collections.abc import Iterable
from typing import Any

import anthropic
import openai
import pytest

from agent.models.script import PlannedFault, Script, ScriptedCall, Turn
from agent.models.server import ModelServer
from eventlog.messages import Usage

CALLS = (ScriptedCall(name="read", arguments={"path": "a.py"}), ScriptedCall(name="grep", arguments={"pattern": "é"}))
SPENT = Usage(input=100, cached=60, cache_written=30, output=20, reasoning=5)
SHOWN = Turn(text="First I look.", reasoning="What is asked?", tool_calls=CALLS, usage=SPENT, chunk_bytes=11)
HIDDEN = Turn(reasoning="Not for show.", hide_reasoning=True, tool_calls=CALLS[:1])
LAST = Turn(text="It is done.", reasoning="Enough.")
SCRIPT = Script(turns=(SHOWN, HIDDEN, LAST, Turn(text="Good-bye.")), model="made-up")
TOOLS = {name: {"type": "object", "properties": {}} for name in ("read", "grep")}


def openai_client(server: ModelServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0)


def anthropic_client(server: ModelServer) -> anthropic.AsyncAnthropic:
    base_url = server.base_url.removesuffix("/v1")
    return anthropic.AsyncAnthropic(base_url=base_url, api_key="none", max_retries=0)


async def complete(client: openai.AsyncOpenAI, messages: Iterable[Any]) -> Any:
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": shape}} for name, shape in TOOLS.items()
    ]
    async with client.chat.completions.stream(model="m", messages=messages, tools=tools) as stream:
        return await stream.get_final_completion()


async def respond(client: openai.AsyncOpenAI, input: Any) -> Any:
    tools: Any = [{"type": "function", "name": name, "parameters": shape} for name, shape in TOOLS.items()]
    more: Any = {"store": False, "include": ["reasoning.encrypted_content"], "tools": tools}
    async with client.responses.stream(model="m", input=input, **more) as stream:
        events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final: Any = events[-1]
    return final.response


async def converse(client: anthropic.AsyncAnthropic, messages: Any) -> Any:
    tools: Any = [{"name": name, "input_schema": shape} for name, shape in TOOLS.items()]
    async with client.messages.stream(model="m", max_tokens=100, messages=messages, tools=tools) as stream:
        return await stream.get_final_message()


async def test_chat_completions_through_its_library() -> None:
    async with ModelServer(SCRIPT) as server, openai_client(server) as client:
        asked: list[Any] = [{"role": "user", "content": "do it"}]
        for turn in SCRIPT.turns:
            completion = await complete(client, asked)
            choice = completion.choices[0]
            assert (choice.message.content or "") == turn.text
            calls = choice.message.tool_calls or []
            assert [call.function.name for call in calls] == [call.name for call in turn.tool_calls]
            assert choice.finish_reason == ("tool_calls" if calls else "stop")
            said = choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
            for call in said.get("tool_calls", []):
                call["function"].pop("parsed_arguments", None)
            asked.append({**said, "content": said.get("content") or None})
            asked += [{"role": "tool", "tool_call_id": call.id, "content": "found"} for call in calls]
            asked += [] if calls else [{"role": "user", "content": "more"}]


async def test_responses_through_its_library() -> None:
    async with ModelServer(SCRIPT) as server, openai_client(server) as client:
        asked: list[Any] = [{"role": "user", "content": "do it"}]
        for turn in SCRIPT.turns:
            response = await respond(client, asked)
            calls = [item for item in response.output if item.type == "function_call"]
            thoughts = [item for item in response.output if item.type == "reasoning"]
            assert (response.status, response.output_text) == ("completed", turn.text)
            assert [call.name for call in calls] == [call.name for call in turn.tool_calls]
            shown = "".join(part.text for item in thoughts for part in item.summary)
            assert shown == ("" if turn.hide_reasoning else turn.reasoning)
            asked += [item.model_dump(exclude={"parsed_arguments"}) for item in response.output]
            asked += [{"type": "function_call_output", "call_id": call.call_id, "output": "found"} for call in calls]
            asked += [] if calls else [{"role": "user", "content": "more"}]


async def test_messages_through_its_library() -> None:
    paused = Turn(text="One moment.", stop="pause")
    script = Script(turns=(paused, *SCRIPT.turns))
    async with ModelServer(script) as server, anthropic_client(server) as client:
        asked: list[Any] = [{"role": "user", "content": "do it"}]
        for turn in script.turns:
            message = await converse(client, asked)
            calls = [block for block in message.content if block.type == "tool_use"]
            assert "".join(block.text for block in message.content if block.type == "text") == turn.text
            assert [(call.name, call.input) for call in calls] == [(c.name, c.arguments) for c in turn.tool_calls]
            thoughts = [block.type for block in message.content if "thinking" in block.type]
            kind = "redacted_thinking" if turn.hide_reasoning else "thinking"
            assert thoughts == ([kind] if turn.reasoning else [])
            stop = "pause_turn" if turn is paused else "tool_use" if calls else "end_turn"
            assert message.stop_reason == stop
            content = [block.model_dump(exclude_none=True) for block in message.content]
            if asked[-1]["role"] == "assistant":
                asked[-1]["content"] += content
            else:
                asked.append({"role": "assistant", "content": content})
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "found"} for call in calls]
            asked += [{"role": "user", "content": results or "more"}] if stop != "pause_turn" else []


async def test_each_library_reads_the_same_usage() -> None:
    asked: list[Any] = [{"role": "user", "content": "do it"}]
    async with ModelServer(SCRIPT) as server, openai_client(server) as one, anthropic_client(server) as other:
        responded = (await respond(one, asked)).usage
        assert (responded.input_tokens, responded.output_tokens, responded.total_tokens) == (100, 20, 120)
        assert responded.input_tokens_details.cached_tokens == 60
        assert responded.output_tokens_details.reasoning_tokens == 5
        said = (await converse(other, asked)).usage
        assert (said.input_tokens, said.cache_read_input_tokens, said.cache_creation_input_tokens) == (10, 60, 30)
        assert said.output_tokens == 20
        stream = await one.chat.completions.create(
            model="m", messages=asked, stream=True, stream_options={"include_usage": True}
        )
        (completed,) = [chunk.usage async for chunk in stream if chunk.usage]
        assert (completed.prompt_tokens, completed.completion_tokens) == (100, 20)


@pytest.mark.parametrize(("stop", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_an_incomplete_response_says_why(stop: str, reason: str) -> None:
    script = Script(turns=(Turn(text="It goes on and", stop=stop),))
    async with ModelServer(script) as server, openai_client(server) as client:
        response = await respond(client, "do it")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", reason)
    assert response.output_text == "It goes on and"


async def test_a_refusal_has_each_protocols_form() -> None:
    script = Script(turns=(Turn(text="I will not.", stop="refusal"),))
    asked: list[Any] = [{"role": "user", "content": "do it"}]
    async with ModelServer(script) as server, openai_client(server) as one, anthropic_client(server) as other:
        assert (await respond(one, asked)).output[0].content[0].refusal == "I will not."
        assert (await complete(one, asked)).choices[0].message.refusal == "I will not."
        assert (await converse(other, asked)).stop_reason == "refusal"


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 529])
async def test_a_status_raises_the_librarys_own_error(status: int) -> None:
    fault = PlannedFault(fail=str(status), times=9, retry_after=2)
    script = Script(turns=(Turn(text="Never.", faults=(fault,)),))
    asked: list[Any] = [{"role": "user", "content": "do it"}]
    async with ModelServer(script) as server, openai_client(server) as one, anthropic_client(server) as other:
        for ask in (complete(one, asked), respond(one, asked), converse(other, asked)):
            with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as raised:
                await ask
            assert raised.value.status_code == status
            assert raised.value.response.headers["retry-after"] == "2"
            assert f"scripted failure {status}" in str(raised.value)


@pytest.mark.parametrize("fail", ["error_in_stream", "overloaded_in_stream"])
async def test_an_error_in_the_middle_reaches_the_library(fail: str) -> None:
    script = Script(turns=(Turn(text="Never ends.", faults=(PlannedFault(fail=fail, times=9),)),))
    asked: list[Any] = [{"role": "user", "content": "do it"}]
    async with ModelServer(script) as server, openai_client(server) as one, anthropic_client(server) as other:
        with pytest.raises(openai.APIError, match="scripted failure"):
            await complete(one, asked)
        with pytest.raises(anthropic.APIStatusError, match="scripted failure"):
            await converse(other, asked)
        more: Any = {"store": False, "include": ["reasoning.encrypted_content"]}
        stream: Any = await one.responses.create(model="m", input="do it", stream=True, **more)
        *_, error, failed = [event async for event in stream]
        assert (error.type, failed.type, failed.response.status) == ("error", "response.failed", "failed")
        assert error.code == failed.response.error.code


async def test_a_missing_version_is_refused() -> None:
    asked: list[Any] = [{"role": "user", "content": "do it"}]
    async with ModelServer(SCRIPT) as server, anthropic_client(server) as client:
        with pytest.raises(anthropic.BadRequestError, match="anthropic-version"):
            await client.messages.create(
                model="m", max_tokens=9, messages=asked, extra_headers={"anthropic-version": ""}
            )


async def test_both_libraries_list_its_model() -> None:
    async with ModelServer(SCRIPT) as server, openai_client(server) as one, anthropic_client(server) as other:
        assert [model.id async for model in one.models.list()] == ["made-up"]
        assert [model.id async for model in other.models.list()] == ["made-up"]
