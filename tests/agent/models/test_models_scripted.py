"""The scripted model: the same reply to the same request, in process and behind the server."""

import json
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from models_talk import PROTOCOLS, answered, asked
from models_wire import request

from agent.models.client import BadScript, Delta, ModelRequest, ignore_delta
from agent.models.http import HttpModel, Timeouts
from agent.models.script import Fail
from agent.models.script_player import ENDED
from agent.models.scripted import (
    PlannedFault,
    Script,
    ScriptedCall,
    ScriptedConversation,
    ScriptedModel,
    Turn,
    load_script,
)
from agent.models.server import ModelServer
from agent.models.wires import WIRES
from configs.models import Protocol
from eventlog.messages import UserMessage
from eventlog.outcomes import ModelFailed, ModelReplied

CALL = ScriptedCall(name="read", arguments={"path": "a"})


def talk(*roles: str, first: str = "do it") -> ModelRequest:
    """Where a tool answers, the assistant before it has called."""
    said: list[dict[str, Any]] = []
    for role in roles:
        said.append({"role": role, "content": first if role == "user" else "x"})
        if role == "tool":
            said[-2]["tool_calls"] = [{"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}]
            said[-1]["tool_call_id"] = "a"
    return request(body=json.dumps({"messages": said}).encode())


async def text(model: ScriptedModel, sent: ModelRequest) -> str:
    outcome = await model.complete(sent, ignore_delta)
    return outcome.message.text if isinstance(outcome, ModelReplied) else outcome.fault


async def test_the_reply_follows_from_the_number_of_assistant_messages() -> None:
    model = ScriptedModel(Script(turns=(Turn(text="one"), Turn(text="two"))))
    assert [await text(model, talk("user")) for _ in range(2)] == ["one", "one"]
    assert await text(model, talk("user", "assistant", "tool", "user")) == "two"
    assert await text(model, talk("user", "assistant", "assistant")) == ENDED
    assert len(model.requests) == 4


async def test_a_script_may_begin_again() -> None:
    model = ScriptedModel(Script(turns=(Turn(text="one"), Turn(text="two")), loop=True))
    assert await text(model, talk("user", "assistant", "assistant", "assistant")) == "two"


async def test_faults_come_first_and_are_counted_for_each_turn_and_conversation() -> None:
    faults = (PlannedFault(fail="500", times=2), PlannedFault(fail="429"))
    model = ScriptedModel(Script(turns=(Turn(text="one", faults=faults),)))
    here = [await text(model, talk("user")) for _ in range(5)]
    assert here == ["server", "server", "rate_limited", "one", "one"]
    assert await text(model, talk("user", first="another conversation")) == "server"


async def test_a_conversation_is_chosen_by_its_first_message() -> None:
    other = ScriptedConversation(when="tests", turns=(Turn(text="I test."),))
    model = ScriptedModel(Script(turns=(Turn(text="I work."),), conversations=(other,)))
    assert await text(model, talk("user", first="run the tests")) == "I test."
    assert await text(model, talk("user", first="fix it")) == "I work."


async def test_what_is_no_request_is_refused() -> None:
    outcome = await ScriptedModel(Script()).complete(request(body=b"no json"), ignore_delta)
    assert isinstance(outcome, ModelFailed)
    assert (outcome.fault, outcome.retry) == ("refused", False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fail", ["429", "500", "401", *get_args(Fail)])
async def test_a_fault_ends_alike_in_process_and_over_the_network(fail: str, protocol: Protocol) -> None:
    turn = Turn(text="I read the file.", reasoning="hm", tool_calls=(CALL, CALL), chunk_bytes=7)
    fault = PlannedFault(fail=fail, bytes=250)
    script, ends = Script(turns=(turn.model_copy(update={"faults": (fault,)}),)), list[dict[str, Any]]()
    quick = Timeouts(silence_s=0.2)
    async with (
        ModelServer(script) as server,
        HttpModel(WIRES[protocol], server.base_url, random=Random(1), timeouts=quick) as client,
    ):
        for model in (client, ScriptedModel(script, Random(1), protocol)):
            for number in range(2):
                deltas: list[Delta] = []
                outcome = await model.complete(asked(protocol, sent_before=number + 1), deltas.append)
                shown = outcome.model_dump(exclude={"first_byte_ms", "total_ms", "text"})
                ends.append({**shown, "deltas": deltas})
    assert ends[:2] == ends[2:]


FAULTS = {
    "429": ("rate_limited", True),
    "500": ("server", True),
    "529": ("overloaded", True),
    "401": ("refused", False),
    "context_too_long": ("context_too_long", False),
    "cut_before_arguments": ("cut", True),
    "cut_arguments": ("cut", True),
    "cut_after_arguments": ("cut", True),
    "cut_at": ("cut", True),
    "clean_close": ("cut", True),
    "reset": ("network", True),
    "silence": ("timeout", True),
    "html": ("malformed", True),
    "empty": ("malformed", True),
    "spaces": ("malformed", True),
    "error_in_stream": ("server", True),
    "overloaded_in_stream": ("overloaded", True),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fail", FAULTS)
async def test_a_fault_means_the_same_in_every_protocol(fail: str, protocol: Protocol) -> None:
    turn = Turn(text="I read the file.", tool_calls=(CALL,), faults=(PlannedFault(fail=fail, bytes=250),))
    outcome = await ScriptedModel(Script(turns=(turn,)), None, protocol).complete(asked(protocol), ignore_delta)
    assert isinstance(outcome, ModelFailed)
    assert (outcome.fault, outcome.retry) == FAULTS[fail]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fail", sorted({*get_args(Fail)} - FAULTS.keys()))
async def test_an_odd_reply_is_a_reply_in_every_protocol(fail: str, protocol: Protocol) -> None:
    turn = Turn(text="I read the file.", tool_calls=(CALL, CALL), faults=(PlannedFault(fail=fail),))
    script, messages = Script(turns=(turn, Turn(text="I go on."))), (UserMessage(text="do it"),)
    model = ScriptedModel(script, None, protocol)
    odd = await model.complete(asked(protocol, messages), ignore_delta)
    assert isinstance(odd, ModelReplied)
    ids = [call.id for call in odd.message.tool_calls]
    assert len({*ids}) == len(ids) == (2 if fail == "same_id" else 1)
    after = await model.complete(asked(protocol, answered(messages, odd)), ignore_delta)
    assert isinstance(after, ModelReplied), after
    assert after.message.text == "I go on."


async def test_a_shipped_script_reads_back_equal(tmp_path: Path) -> None:
    script = Script(turns=(Turn(text="a", tool_calls=(CALL,), faults=(PlannedFault(fail="429", retry_after=1),)),))
    file = tmp_path / "script.json"
    file.write_text(script.model_dump_json())
    assert load_script(file) == script


@pytest.mark.parametrize(
    ("written", "where"),
    [
        ("{", "its start"),
        ('{"turns":[{"txt":"a"}]}', "turns.0.txt"),
        ('{"turns":[{"faults":[{"fail":"explode"}]}]}', "turns.0.faults.0.fail"),
        ('{"turns":[{"faults":[{"fail":"200"}]}]}', "turns.0.faults.0.fail"),
    ],
)
def test_a_script_with_a_mistake_is_refused_with_its_place(tmp_path: Path, written: str, where: str) -> None:
    file = tmp_path / "script.json"
    file.write_text(written)
    with pytest.raises(BadScript, match=where):
        load_script(file)


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadScript, match="cannot be read"):
        load_script(tmp_path / "none.json")
