"""What comes after a turn: check the reply's shape, bring the work to the checkout, name what changed."""

import json
from collections.abc import Sequence
from typing import Any

from actors.coordinator import Coordinator
from agent.state import State, ended
from eventlog.events import EffectFinished, Event, TurnEnded, UserSaid
from eventlog.ids import CommandId
from eventlog.outcomes import Merged, Refused
from worktrees.git import GitError
from worktrees.merge import changed_files

SCHEMA_TRIES = 2
_AFTER_A_TURN = 64
"""More events than ever stand between a turn's end and its merge."""


class BadSchema(Exception):
    """One sentence."""


def read_schema(given: str, read: str | None) -> str:
    """The schema as JSON text: `read` is the content of the file that `given` names, if it does. Raises BadSchema."""
    import jsonschema
    import jsonschema.validators

    text = read if read is not None else given
    try:
        schema = json.loads(text)
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except (ValueError, jsonschema.SchemaError) as error:
        raise BadSchema(f"--json-schema is no JSON schema: {str(error).splitlines()[0]}") from error
    return json.dumps(schema, ensure_ascii=False)


def mismatch(schema: str, reply: str) -> str | None:
    """Why a reply does not fit; None where it does."""
    import jsonschema
    import jsonschema.validators

    try:
        value: Any = json.loads(reply)
        jsonschema.validate(value, json.loads(schema))
    except ValueError:
        return "it is not JSON"
    except jsonschema.ValidationError as error:
        return f"at {error.json_path}: {error.message}"
    return None


async def shape_reply(
    coordinator: Coordinator, state: State, schema: str, request: CommandId
) -> tuple[State, str | None]:
    """Ask again, a bounded number of times, until the reply fits. Returns what is still wrong, None for nothing.

    `request` is what it is asked for: a process that takes up another's session does not begin to count anew."""
    for number in range(SCHEMA_TRIES):
        id = CommandId(f"{request}-schema-{number}")
        if id in state.commands:
            continue
        wrong = mismatch(schema, state.ending.text if state.ending else "")
        if wrong is None or ended(state) != "done":
            return state, wrong
        text = f"Your reply does not fit the schema: {wrong}. Reply with the JSON value alone."
        state = await coordinator.say(UserSaid(id=id, text=text))
    return state, mismatch(schema, state.ending.text if state.ending else "")


def find_merge(events: Sequence[Event]) -> Merged | None:
    """The merge of the last turn's work, if the log has it."""
    for event in reversed(events):
        match event.body:
            case EffectFinished(outcome=Merged() as merged):
                return merged
            case TurnEnded() | UserSaid():
                return None
            case _:
                pass
    return None


async def merge_once(coordinator: Coordinator, now_s: int) -> Merged | Refused:
    """As `merge_work`, but what a process merged before it died is not merged again: meanwhile the user goes on."""
    log = coordinator.opened.log
    done = find_merge(tuple(log.read(max(log.head.seq - _AFTER_A_TURN, 0))))
    if done is None:
        return await merge_work(coordinator, now_s)
    _give_back_worktree(coordinator, now_s)
    return done


async def merge_work(coordinator: Coordinator, now_s: int) -> Merged | Refused:
    """Bring the result to the checkout; then the worktree goes back to the pool, as everything in it is kept."""
    done = await coordinator.merge(now_s, coordinator.opened.log.head.seq + 1)
    if isinstance(done, Merged):
        _give_back_worktree(coordinator, now_s)
    return done


def _give_back_worktree(coordinator: Coordinator, now_s: int) -> None:
    """And those of its background agents, who get others when they are woken again. Nothing where there is none:
    somebody who merged before may have given it back."""
    files = coordinator.files
    for own in (files, *(files.of_agent(one.agent) for one in coordinator.state.crew)):
        worktree = own.pool.adopt(own.key)
        if worktree is not None:
            own.pool.release(worktree, now_s=now_s)


def list_changes(coordinator: Coordinator) -> tuple[str, ...]:
    """`M src/a.py +3 -1` for each file that differs from the start."""
    state = coordinator.state
    if state.worktree is None or state.snapshot is None or state.snapshot == state.worktree.base:
        return ()
    try:
        files = changed_files(coordinator.files.repository, state.worktree.base, state.snapshot)
    except GitError:
        return ("The changes cannot be listed: the repository no longer has the session's commits.",)
    return tuple(f"{file.status} {file.path}{_counts(file.added, file.deleted)}" for file in files)


def _counts(added: int | None, deleted: int | None) -> str:
    return "" if added is None or deleted is None else f" +{added} -{deleted}"
