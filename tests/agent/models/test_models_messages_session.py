"""A whole session over Messages with a loopback server that refuses what the strictest provider would refuse."""

import orjson
from messages_talk import context, said
from pydantic import SecretStr

from agent.models.client import Delta, ModelRequest
from agent.models.http import HttpModel
from agent.models.requests import RequestCache
from agent.models.script import PlannedFault, Script, ScriptedCall, Turn
from agent.models.server import ModelServer
from agent.models.wires import wire_of
from eventlog.ids import model_call_id
from eventlog.messages import Message, ToolMessage, Usage
from eventlog.outcomes import ModelFailed, ModelReplied

READ = ScriptedCall(name="read", arguments={"path": "a é"})
SCRIPT = Script(
    turns=(
        Turn(reasoning="I look first.", tool_calls=(READ, ScriptedCall(name="grep", arguments={"pattern": "x"}))),
        Turn(text="I search.", reasoning="Somewhere else.", hide_reasoning=True, stop="pause"),
        Turn(text="It was found.", usage=Usage(input=500, cached=400, cache_written=60, output=7)),
        Turn(tool_calls=(READ,), faults=(PlannedFault(fail="error_in_stream"), PlannedFault(fail="cut_arguments"))),
        Turn(text="Done."),
    )
)


async def test_thinking_calls_pauses_and_faults_go_through_a_session() -> None:
    where, cache, talk = context('{"thinking":{"type":"adaptive"}}'), RequestCache(), list[Message]([said("go")])
    stops, faults, usages, deltas = list[str](), list[str](), list[Usage](), list[Delta]()
    async with (
        ModelServer(SCRIPT) as server,
        HttpModel(wire_of(where.builder), server.base_url, SecretStr("k-1")) as model,
    ):
        while len(stops) < len(SCRIPT.turns):
            cache.update(where, talk)
            asked = ModelRequest(model_call_id(len(stops) + 1), cache.body(None), sent_before=len(faults))
            outcome = await model.complete(asked, deltas.append)
            match outcome:
                case ModelFailed():
                    assert outcome.retry, outcome.text
                    faults.append(outcome.fault)
                case ModelReplied():
                    stops.append(outcome.stop)
                    usages.append(outcome.usage)
                    calls = outcome.message.tool_calls
                    talk += [
                        outcome.message,
                        *(ToolMessage(call_id=made.id, provider_id=made.provider_id, text="a") for made in calls),
                        *([said("and now?")] if outcome.stop == "stop" else []),
                    ]
    assert stops == ["tool_calls", "pause", "stop", "tool_calls", "stop"]
    assert faults == ["server", "cut"]
    assert usages[2] == SCRIPT.turns[2].usage
    assert server.headers[0]["x-api-key"] == "k-1"
    assert server.headers[0]["anthropic-version"] == "2023-06-01"
    roles = [message["role"] for message in orjson.loads(server.requests[-1])["messages"]]
    assert roles == ["user", "assistant"] * 3 + ["user"]
    assert len(deltas) > len(SCRIPT.turns)
