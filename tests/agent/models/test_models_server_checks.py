"""The scripted server is a strict peer: a valid conversation goes on, and each mistake is refused with its sentence."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from agent.models.script import PlannedFault, Script, ScriptedCall, Turn
from agent.models.script_dialect import seal
from agent.models.script_player import DIALECTS, ENDED, Player
from configs.models import Protocol

Request = dict[str, Any]
CALLS = (ScriptedCall(name="read", arguments={"path": "a"}), ScriptedCall(name="read", arguments={"path": "b"}))
SCRIPT = Script(
    turns=(Turn(text="First, I look.", reasoning="hm", tool_calls=CALLS), Turn(text="Then it is done.", reasoning="so"))
)
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
ARGUMENTS = '{"path":"a"}'


def chat() -> Request:
    calls = [{"id": id, "type": "function", "function": {"name": "read", "arguments": ARGUMENTS}} for id in ("x", "y")]
    return {
        "model": "m",
        "stream": True,
        "tools": [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}],
        "messages": [
            {"role": "system", "content": "You code."},
            {"role": "user", "content": "do it"},
            {"role": "assistant", "content": "First, I look.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "x", "content": "1"},
            {"role": "tool", "tool_call_id": "y", "content": "2"},
        ],
    }


def responses() -> Request:
    reasoning = {"type": "reasoning", "id": "rs_0", "summary": [{"type": "summary_text", "text": "hm"}]}
    return {
        "model": "m",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "instructions": "You code.",
        "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}],
        "input": [
            {"role": "user", "content": "do it"},
            {**reasoning, "encrypted_content": seal("rs_0", "hm", False)},
            {"role": "assistant", "content": [{"type": "output_text", "text": "First, I look."}]},
            {"type": "function_call", "call_id": "x", "name": "read", "arguments": ARGUMENTS},
            {"type": "function_call", "call_id": "y", "name": "read", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "x", "output": "1"},
            {"type": "function_call_output", "call_id": "y", "output": "2"},
        ],
    }


def messages() -> Request:
    said = [
        {"type": "thinking", "thinking": "hm", "signature": seal("hm")},
        {"type": "text", "text": "First, I look."},
        {"type": "tool_use", "id": "x", "name": "read", "input": {"path": "a"}},
        {"type": "tool_use", "id": "y", "name": "read", "input": {"path": "b"}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "x", "content": "1"},
        {"type": "tool_result", "tool_use_id": "y", "content": "2", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "and be quick"},
    ]
    return {
        "model": "m",
        "stream": True,
        "max_tokens": 100,
        "system": [{"type": "text", "text": "You code.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "read", "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": "do it"},
            {"role": "assistant", "content": said},
            {"role": "user", "content": results},
        ],
    }


WHOLE: dict[Protocol, Callable[[], Request]] = {"chat": chat, "responses": responses, "messages": messages}
LISTS: dict[Protocol, str] = {"chat": "messages", "responses": "input", "messages": "messages"}


def ask(protocol: Protocol, request: Request, script: Script = SCRIPT) -> tuple[int, str]:
    answer = Player(script).answer(protocol, json.dumps(request).encode())
    return answer.status, answer.body.decode()


@pytest.mark.parametrize("protocol", DIALECTS)
def test_a_valid_conversation_gets_the_turn_that_follows(protocol: Protocol) -> None:
    status, body = ask(protocol, WHOLE[protocol]())
    assert status == 200
    assert "Then " in body
    assert "First" not in body


@pytest.mark.parametrize("protocol", DIALECTS)
def test_a_beginning_gets_the_first_turn(protocol: Protocol) -> None:
    request = WHOLE[protocol]()
    request[LISTS[protocol]] = [item for item in request[LISTS[protocol]] if item.get("role") == "user"][:1]
    status, body = ask(protocol, request)
    assert status == 200
    assert "First" in body


@pytest.mark.parametrize("protocol", DIALECTS)
def test_the_place_of_a_turn_is_told_by_the_request_alone(protocol: Protocol) -> None:
    player, body = Player(SCRIPT), json.dumps(WHOLE[protocol]()).encode()
    assert player.answer(protocol, body) == player.answer(protocol, body) == Player(SCRIPT).answer(protocol, body)


def put(*path: str | int | slice, to: Any) -> Callable[[Request], None]:
    """Set what stands at the path; None takes it out."""

    def change(request: Request) -> None:
        *way, last = path
        at: Any = request
        for step in way:
            at = at[step]
        if to is None:
            del at[last]
        else:
            at[last] = to

    return change


def twice(*path: str | int) -> Callable[[Request], None]:
    """What stands at the path stands there again."""

    def change(request: Request) -> None:
        *way, last = path
        at: Any = request
        for step in way:
            at = at[step]
        at.insert(last, copy.deepcopy(at[last]))

    return change


def answer_later(request: Request) -> None:
    first, late, _ = request["messages"][2]["content"]
    request["messages"][2]["content"] = [first]
    request["messages"] += [{"role": "assistant", "content": "Well."}, {"role": "user", "content": [late]}]


CHAT_MISTAKES = [
    ("a call without its answer", put("messages", 4, to=None), "the call y has no output"),
    ("an answer to no call", put("messages", 4, "tool_call_id", to="z"), "no call has the id z"),
    ("two answers to a call", twice("messages", 4), "answered a second time"),
    ("a message between calls and answers", twice("messages", 1 + 1), "has no output"),
    ("two calls of one id", put("messages", 2, "tool_calls", 1, "id", to="x"), "used before"),
    ("a name that is none", put("messages", 2, "tool_calls", 0, "function", "name", to="a b"), "must match"),
    (
        "arguments that are no object",
        put("messages", 2, "tool_calls", 0, "function", "arguments", to="[1]"),
        "the JSON of an object",
    ),
    ("a blank user message", put("messages", 1, "content", to="  "), "not blank"),
    ("a role that is none", put("messages", 1, "role", to="human"), "human"),
    ("the input of another protocol", put("input", to=[]), "unknown parameter: input"),
    ("tools of another protocol", put("tools", to=responses()["tools"]), "list of objects"),
    ("no stream", put("stream", to=False), "only streams"),
    ("reasoning that was never said", put("messages", 2, "reasoning_content", to="ha"), "another place"),
    ("no messages", put("messages", to="do it"), "list of objects"),
    ("two tools of one name", twice("tools", 0), "there are two of read"),
]
RESPONSES_MISTAKES = [
    ("a call without its output", put("input", 6, to=None), "the call y has no output"),
    ("an output to no call", put("input", 6, "call_id", to="z"), "no call has the id z"),
    ("two outputs to a call", twice("input", 6), "answered a second time"),
    ("a user in between", put("input", 5, to={"role": "user", "content": "wait"}), "has no output"),
    ("arguments that are no object", put("input", 3, "arguments", to="{"), "the JSON of an object"),
    ("reasoning left out", put("input", 1, to=None), "missing"),
    ("reasoning without its seal", put("input", 1, "encrypted_content", to=None), "not as it was sent"),
    ("another seal", put("input", 1, "encrypted_content", to=seal("rs_0", "", True)), "not as it was sent"),
    ("a summary changed", put("input", 1, "summary", 0, "text", to="Hm"), "not as it was sent"),
    ("a field more", put("input", 1, "status", to="completed"), "not as it was sent"),
    ("an id changed", put("input", 1, "id", to="rs_1"), "not as it was sent"),
    ("reasoning twice", twice("input", 1), "an item with the id rs_0 before"),
    ("reasoning that nothing follows", put("input", slice(2, None), to=[]), "without the item that follows"),
    ("the id of another kind", put("input", 3, "id", to="call_1"), "begins with fc_"),
    ("a store", put("store", to=True), "store must be false"),
    ("no encrypted content asked for", put("include", to=None), "include must hold"),
    ("a bound that is too low", put("max_output_tokens", to=15), "from 16 on"),
    ("tools of another protocol", put("tools", to=chat()["tools"]), "must match"),
    ("the messages of another protocol", put("messages", to=[]), "unknown parameter: messages"),
    ("no model", put("model", to=None), "model is required"),
    ("an unknown item", put("input", 1, "type", to="thought"), "thought is not read"),
    ("two tools of one name", twice("tools", 0), "there are two of read"),
]
MESSAGES_MISTAKES = [
    ("a call without its result", put("messages", 2, "content", 1, to=None), "the call y has no output"),
    ("a result to no call", put("messages", 2, "content", 1, "tool_use_id", to="z"), "no call has the id z"),
    ("two results to a call", twice("messages", 2, "content", 1), "answered a second time"),
    ("text before results", put("messages", 2, "content", 0, to={"type": "text", "text": "a"}), "has no output"),
    ("roles that do not alternate", twice("messages", 0), "must alternate"),
    ("a beginning by the model", put("messages", 0, to=None), "must alternate"),
    ("the model last", put("messages", 2, to=None), "no output"),
    (
        "a prefill",
        put("messages", slice(1, None), to=[{"role": "assistant", "content": "I"}]),
        "must be of the user",
    ),
    ("blank text", put("messages", 1, "content", 1, "text", to="\n"), "not blank"),
    ("an empty message", put("messages", 0, "content", to=[]), "must not be empty"),
    ("thinking left out", put("messages", 1, "content", 0, to=None), "missing"),
    ("thinking without a signature", put("messages", 1, "content", 0, "signature", to=None), "not as it was sent"),
    ("thinking changed", put("messages", 1, "content", 0, "thinking", to="Hm"), "not as it was sent"),
    ("thinking twice", twice("messages", 1, "content", 0), "another place"),
    (
        "a mark on thinking",
        put("messages", 1, "content", 0, "cache_control", to={"type": "ephemeral"}),
        "cannot stand on thinking",
    ),
    ("an id that is none", put("messages", 1, "content", 2, "id", to="x.1"), "must match"),
    ("an input that is no object", put("messages", 1, "content", 2, "input", to=[1]), "must be an object"),
    ("no bound", put("max_tokens", to=None), "max_tokens is required"),
    ("blank system", put("system", to=""), "not blank"),
    ("tools of another protocol", put("tools", to=responses()["tools"]), "input_schema"),
    (
        "too many marks",
        put("system", to=[{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}] * 4),
        "at most 4",
    ),
    ("a system message", put("messages", 0, "role", to="system"), "must alternate"),
    ("two tools of one name", twice("tools", 0), "there are two of read"),
    ("a result a turn too late", answer_later, "the call y has no output"),
]
MISTAKES: list[tuple[Protocol, str, Callable[[Request], None], str]] = [
    *(("chat", *mistake) for mistake in CHAT_MISTAKES),
    *(("responses", *mistake) for mistake in RESPONSES_MISTAKES),
    *(("messages", *mistake) for mistake in MESSAGES_MISTAKES),
]


@pytest.mark.parametrize(
    ("protocol", "change", "sentence"),
    [(protocol, change, sentence) for protocol, _, change, sentence in MISTAKES],
    ids=[f"{protocol}-{name}" for protocol, name, _, _ in MISTAKES],
)
def test_a_mistake_is_refused(protocol: Protocol, change: Callable[[Request], None], sentence: str) -> None:
    request = WHOLE[protocol]()
    change(request)
    status, body = ask(protocol, request)
    assert status == 400
    assert sentence in json.loads(body)["error"]["message"]
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_thinking_behind_what_it_led_to_is_refused() -> None:
    request = messages()
    said = request["messages"][1]["content"]
    said.insert(1, said.pop(0))
    assert "thinking must stand before" in ask("messages", request)[1]


@pytest.mark.parametrize("body", [b"no json", b"[]", b"{}"])
@pytest.mark.parametrize("protocol", DIALECTS)
def test_what_is_no_request_is_refused_in_the_protocols_form(protocol: Protocol, body: bytes) -> None:
    answer = Player(SCRIPT).answer(protocol, body)
    error = json.loads(answer.body)
    assert answer.status == 400
    assert error["error"]["message"]
    assert (error.get("type") == "error") == (protocol == "messages")


@pytest.mark.parametrize("protocol", DIALECTS)
def test_what_another_model_said_need_not_bring_reasoning(protocol: Protocol) -> None:
    request = WHOLE[protocol]()
    script = Script(turns=(Turn(text="Otherwise.", reasoning="hm"), Turn(text="Then it is done.")))
    assert ask(protocol, request, script)[0] == 200
    if protocol == "responses":
        del request["input"][1]
    if protocol == "messages":
        del request["messages"][1]["content"][0]
    assert ask(protocol, request, script)[0] == 200


@pytest.mark.parametrize("protocol", DIALECTS)
def test_reasoning_is_checked_where_its_turn_has_moved(protocol: Protocol) -> None:
    """A conversation that was made shorter, as by compaction."""
    script = Script(turns=(Turn(text="Older.", reasoning="older"), *SCRIPT.turns))
    status, body = ask(protocol, WHOLE[protocol](), script)
    assert status == 200
    assert "First" in body


def test_turns_that_nothing_stands_between_are_two() -> None:
    request = responses()
    said = [{"role": "assistant", "content": "One."}, {"role": "assistant", "content": "Two."}]
    request["input"] = [request["input"][0], *said, {"role": "user", "content": "go on"}]
    script = Script(turns=(Turn(text="One."), Turn(text="Two."), Turn(text="Three and more.")))
    assert "Three" in ask("responses", request, script)[1]


def test_reasoning_begins_with_a_seal_that_is_not_the_one_to_keep() -> None:
    request = responses()
    request["input"] = request["input"][:1]
    found = [json.loads(line[6:]) for line in ask("responses", request)[1].splitlines() if line.startswith("data: ")]
    items = [event["item"] for event in found if event.get("item", {}).get("type") == "reasoning"]
    assert len({item["encrypted_content"] for item in items}) == len(items) == 2


def test_a_stream_of_messages_is_pinged() -> None:
    assert "event: ping\n" in ask("messages", messages())[1]


CUTS = ("cut_before_arguments", "cut_arguments", "cut_after_arguments")


@pytest.mark.parametrize("protocol", DIALECTS)
def test_a_reply_is_cut_before_within_and_behind_its_arguments(protocol: Protocol) -> None:
    turn = Turn(text="I look.", tool_calls=(ScriptedCall(name="read", arguments={"path": "a/long/name.py"}),))
    cuts = [turn.model_copy(update={"faults": (PlannedFault(fail=cut),)}) for cut in CUTS]
    before, within, behind, whole = (
        Player(Script(turns=(played, played))).answer(protocol, json.dumps(WHOLE[protocol]()).encode())
        for played in (*cuts, turn)
    )
    assert [answer.ending for answer in (before, within, behind, whole)] == ["cut", "cut", "cut", "whole"]
    assert whole.body.startswith(behind.body)
    assert behind.body.startswith(within.body)
    assert within.body.startswith(before.body)
    assert b'"read"' in before.body
    assert b"path" not in before.body
    assert b"path" in within.body
    assert b"name.py" not in within.body
    assert b".py" in behind.body
    assert b'finish_reason":"' not in behind.body


def paused(*behind: dict[str, Any]) -> Request:
    query = {"query": "how to go on"}
    mark = {"type": "server_tool_use", "id": "srvtoolu_0", "name": "web_search", "input": query}
    said = [{"type": "text", "text": "One moment."}, mark, *behind]
    more = [{"role": "user", "content": "go on"}] if behind else []
    asked = [{"role": "user", "content": "do it"}, {"role": "assistant", "content": said}, *more]
    return {"model": "m", "stream": True, "max_tokens": 100, "messages": asked}


def test_a_paused_turn_goes_on_in_the_same_message() -> None:
    script = Script(
        turns=(Turn(text="One moment.", stop="pause"), Turn(text="Here it is."), Turn(text="Good to know."))
    )
    assert "Here" in ask("messages", paused(), script)[1]
    assert "Good" in ask("messages", paused({"type": "text", "text": "Here it is."}), script)[1]
    touched = paused()
    touched["messages"][1]["content"][1]["input"] = {}
    assert ask("messages", touched, script)[0] == 400
    left_out = paused({"type": "text", "text": "Here it is."})
    del left_out["messages"][1]["content"][1]
    assert "Here" in ask("messages", left_out, script)[1]  # one turn of another text


def test_after_the_last_turn_the_script_has_ended() -> None:
    request = chat()
    request["messages"] += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "more"}]
    pieces = [json.loads(line[6:]) for line in ask("chat", request)[1].splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"].get("content", "") for piece in pieces for choice in piece["choices"]]
    assert "".join(deltas) == ENDED
