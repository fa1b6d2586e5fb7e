"""A model that plays a script in process: no network, the same bytes, the same reader, the same outcomes."""

import asyncio
from random import Random
from time import monotonic, time

from agent.models.client import ModelRequest, OnDelta, estimated_usage
from agent.models.faults import Fault, fault_of_response, wait_ms
from agent.models.script import (
    PlannedFault,
    Script,
    ScriptedCall,
    ScriptedConversation,
    Turn,
    load_script,
)
from agent.models.script_player import Player
from agent.models.script_wire import Answer
from agent.models.settle import failed, settle
from agent.models.verdicts import Faulty
from agent.models.wires import WIRES
from configs.models import Protocol
from eventlog.outcomes import ModelFailed, ModelReplied

__all__ = [
    "PlannedFault",
    "Script",
    "ScriptedCall",
    "ScriptedConversation",
    "ScriptedModel",
    "Turn",
    "load_script",
]

_RESET = Fault("network", "The connection was reset before an answer.", True)
_CUT = Fault("cut", "The connection broke in the middle of the reply.", True)
_SILENCE = Fault("timeout", "The model server fell silent.", True)


class ScriptedModel:
    """A ModelClient. Silence is a timeout at once; a delay is waited for."""

    def __init__(self, script: Script, random: Random | None = None, protocol: Protocol = "chat") -> None:
        self.requests: list[bytes] = []
        """Every body it got."""
        self._player = Player(script)
        self._random = random or Random(0)
        self._protocol: Protocol = protocol

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelReplied | ModelFailed:
        begin = monotonic()
        self.requests.append(request.body)
        answer = self._player.answer(self._protocol, request.body)
        await asyncio.sleep(answer.delay_ms / 1000)
        headers = dict(answer.headers)

        def wait() -> int:
            return wait_ms(headers, request.sent_before, self._random, time())

        if answer.status != 200:
            return failed(fault_of_response(answer.status, headers, answer.body), wait, answer.status)
        match answer.ending:
            case "reset":
                return settle(Faulty(_RESET, estimated_usage(len(request.body), 0), 0), request, wait, 0, 0)
            case "silence":
                return settle(Faulty(_SILENCE, None, 0), request, wait, 0, 0)
            case _:
                return await self._read(request, on_delta, answer, begin)

    async def _read(
        self, request: ModelRequest, on_delta: OnDelta, answer: Answer, begin: float
    ) -> ModelReplied | ModelFailed:
        stream = WIRES[self._protocol].reader(request.call_id)
        step = answer.chunk_bytes or len(answer.body) or 1
        for at in range(0, len(answer.body), step):
            for delta in stream.feed(answer.body[at : at + step]):
                on_delta(delta)
            await asyncio.sleep(0)
        first_ms = answer.delay_ms
        total_ms = round(1000 * (monotonic() - begin))
        verdict = stream.finish()
        if answer.ending == "cut" and isinstance(verdict, Faulty):
            verdict = Faulty(_CUT, verdict.usage, verdict.output_bytes)
        return settle(
            verdict, request, lambda: wait_ms({}, request.sent_before, self._random, time()), first_ms, total_ms
        )
