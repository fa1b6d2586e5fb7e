"""Conversations for `messages/1` in few words, and what their requests come to."""

import json
from typing import Any

from agent.models.requests import build_request
from agent.tools.schemas import TOOLS, tools_json
from eventlog.events import ContextSet
from eventlog.ids import CallId
from eventlog.messages import AssistantMessage, Message, OpaquePart, Part, TextPart, ToolCall, ToolMessage, UserMessage

MARK = {"type": "ephemeral"}
ALL_TOOLS = tools_json(tool.name for tool in TOOLS)
SIGNED = '{"type":"thinking","thinking":"hm",  "signature":"c2ln"}'
SEARCH = '{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"a"}}'
FOUND = '{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]}'

STOPS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "pause",
    "refusal": "refusal",
}


def context(parameters: str = "{}", system: str = "be brief", tools: str = ALL_TOOLS) -> ContextSet:
    return ContextSet(
        builder="messages/1",
        model="p/m",
        wire_model="m",
        system=system,
        tools=tools,
        parameters=parameters,
        window=1000,
    )


def body(*talk: Message, where: ContextSet | None = None, bound: int | None = None) -> dict[str, Any]:
    return json.loads(build_request(where or context(), talk, bound))


def contents(*talk: Message, parameters: str = "{}") -> list[tuple[str, list[dict[str, Any]]]]:
    """Role and blocks of each message, without the mark."""
    found = body(*talk, where=context(parameters))["messages"]
    return [(message["role"], [unmarked(block) for block in message["content"]]) for message in found]


def unmarked(block: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "cache_control"}


def said(text: str) -> UserMessage:
    return UserMessage(text=text)


def reply(*parts: Part | str) -> AssistantMessage:
    return AssistantMessage(parts=tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts))


def call(number: int = 1, arguments: str = "{}", name: str = "read") -> ToolCall:
    return ToolCall(id=CallId(f"c1_{number}"), provider_id="toolu", name=name, arguments=arguments)


def result(number: int = 1, text: str = "done") -> ToolMessage:
    return ToolMessage(call_id=CallId(f"c1_{number}"), provider_id="toolu", text=text)


def own(data: str) -> OpaquePart:
    return OpaquePart(provider="messages", data=data)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def marks(made: dict[str, Any]) -> list[str]:
    """What is marked: the system prompt, the name of a tool, or the type of a block and the number of its message."""
    blocks = [("system", block) for block in made.get("system", [])]
    blocks += [(tool["name"], tool) for tool in made.get("tools", [])]
    for at, message in enumerate(made["messages"]):
        blocks += [(f"{block['type']} {at}", block) for block in message["content"]]
    return [name for name, block in blocks if block.get("cache_control") == MARK]
