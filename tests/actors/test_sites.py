"""Where a session's agents get to work: each stays where it was while that node lives, and new ones spread."""

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from actors.detached import WorkerLost
from actors.membership import Member
from actors.placing import NoNode
from actors.sites import OWN, Choosing, Seen, Site
from eventlog.effects import SpawnAgent, WakeAgent
from eventlog.ids import AgentId, Commit
from eventlog.leases import NONE, Lease

BASE = Commit("b" * 40)
_numbers = count()


def member(name: str, **values: Any) -> Member:
    """A node of this version that is alive, with two cores."""
    told = {"address": "", "host": f"{name}.lan", "state": "alive", "own": name == "own", "ours": True, "labels": {}}
    told |= {"cores": 2, "gpus": 0, "agents": 0, "workers": 0, "since_us": 0, "ended_us": None, **values}
    return Member(id=name, **told)


class Cluster:
    """Its nodes, as told one after the other; the last of it stays so."""

    def __init__(self, *members: Member, seen: Seen = "answers") -> None:
        self.told: list[list[Member]] = [list(members)]
        self.seen: dict[str, list[Seen]] = {}
        self.asked: list[str] = []
        self._seen: Seen = seen
        self.choosing = Choosing(self.list_all, self.look)

    async def list_all(self) -> list[Member]:
        return self.told.pop(0) if len(self.told) > 1 else self.told[0]

    async def look(self, node: str) -> Seen:
        self.asked.append(node)
        return self.seen[node].pop(0) if self.seen.get(node) else self._seen

    async def choose(self, agent: str = "", before: Lease = NONE, labels: str = "", **others: int) -> Site:
        """For a round of an agent; a new one where it has no name."""
        name = AgentId(agent or f"new-{next(_numbers)}")
        effect = SpawnAgent(agent=name, round=1, base=BASE, text="", at_s=0, labels=tuple(labels.split()))
        return await self.choosing.choose(effect, before, _busy(others))


def _busy(others: dict[str, int]) -> Any:
    async def count_others() -> Counter[str]:
        return Counter(others)

    return count_others


def site(name: str) -> Site:
    return Site(name, f"{name}.lan")


def on(node: str) -> Lease:
    return Lease(3, 0, node)


# New ones


async def test_a_session_alone_keeps_its_agents_on_its_node_however_many() -> None:
    cluster = Cluster(member("own"), member("dead", state="lost"), member("other-version", ours=False))
    assert [await cluster.choose() for _ in range(9)] == [OWN] * 9
    assert cluster.asked == []


async def test_the_own_node_is_filled_first_and_then_the_least_busy_one() -> None:
    cluster = Cluster(member("own"), member("b"), member("c", cores=4))
    chosen = [(await cluster.choose()).node for _ in range(8)]
    assert chosen[:2] == ["", ""]
    assert Counter(chosen) == {"": 2, "b": 2, "c": 4}


async def test_agents_of_other_sessions_count_as_well() -> None:
    cluster = Cluster(member("own"), member("b"), member("c"))
    assert await cluster.choose(own=2, b=1) == site("c")
    assert await cluster.choose(own=1, b=0) == OWN


async def test_who_is_released_makes_room_and_who_was_placed_twice_counts_once() -> None:
    cluster = Cluster(member("own", cores=1), member("b"))
    assert await cluster.choose("one") == OWN
    assert await cluster.choose("two") == site("b") == await cluster.choose("two", on("b"))
    cluster.choosing.release(AgentId("one"))
    assert await cluster.choose("three") == OWN
    assert (await cluster.choose("four")).node == "b"


async def test_an_agent_that_goes_on_at_home_takes_a_core_there() -> None:
    cluster = Cluster(member("own", cores=1), member("b"))
    assert await cluster.choose("one", on("")) == OWN
    assert await cluster.choose("two") == site("b")


async def test_several_that_begin_at_once_do_not_all_take_the_same_free_core() -> None:
    cluster = Cluster(member("own", cores=1), member("b", cores=1), member("c", cores=1))
    chosen = await asyncio.gather(*(cluster.choose() for _ in range(3)))
    assert {one.node for one in chosen} == {"", "b", "c"}


async def test_labels_are_kept_to_by_living_nodes_of_this_version_alone() -> None:
    big = {"disk": "big"}
    nodes = (member("own"), member("b", labels=big), member("c", labels=big, ours=False))
    cluster = Cluster(*nodes, member("d", labels=big, state="left"))
    assert [await cluster.choose(labels="disk=big") for _ in range(9)] == [site("b")] * 9
    with pytest.raises(NoNode, match="No node has gpu=yes"):
        await cluster.choose(labels="gpu=yes")
    alone = Cluster(member("own"))
    with pytest.raises(NoNode, match="No node has disk=big"):
        await alone.choose(labels="disk=big")


async def test_who_could_not_be_placed_takes_no_room() -> None:
    cluster = Cluster(member("own", cores=1), member("b"))
    with pytest.raises(NoNode):
        await cluster.choose("one", labels="gpu=yes")
    assert await cluster.choose("two") == OWN


async def test_an_agent_in_the_background_is_always_at_home() -> None:
    cluster = Cluster(member("own", cores=1), member("b"))
    wake = WakeAgent(agent=AgentId("w"), round=1, reasons=("start",), base=BASE, text="", at_s=0)
    assert await cluster.choosing.choose(wake, NONE, _busy({"own": 5})) == OWN
    assert await cluster.choose("two") == site("b"), "and counts there"


# Those that were somewhere


async def test_an_agent_stays_where_it_was_while_that_node_lives() -> None:
    """However busy it is, and whatever is free."""
    cluster = Cluster(member("own"), member("b", cores=1), member("c", cores=8))
    for _ in range(5):
        assert await cluster.choose("one", on("b"), b=7) == site("b")
    assert await cluster.choose("two", on("")) == OWN


@pytest.mark.parametrize("became", [None, {"state": "lost"}, {"state": "left"}, {"ours": False}])
async def test_where_its_node_is_none_any_more_it_is_placed_anew(became: dict[str, Any] | None) -> None:
    nodes = [member("own", cores=1), member("c")] + ([] if became is None else [member("b", **became)])
    cluster = Cluster(*nodes)
    assert await cluster.choose("one", on("b"), own=1) == site("c")
    assert cluster.asked == [], "nobody waits for it"


async def test_a_node_that_is_silent_is_looked_at_until_it_answers_or_is_told_to_be_lost() -> None:
    answering = Cluster(member("own"), member("b"))
    answering.seen["b"] = ["silent", "answers"]
    assert await answering.choose("one", on("b")) == site("b")
    lost = Cluster(member("own"), member("b"), seen="silent")
    lost.told.append([member("own"), member("b", state="lost")])
    assert await lost.choose("one", on("b")) == OWN
    assert (len(answering.asked), len(lost.asked)) == (2, 1)


async def test_a_node_at_which_nobody_was_yet_is_gone_to() -> None:
    """The session was killed between the lease and the way to that node: nobody there can answer."""
    cluster = Cluster(member("own"), member("b"), seen="nobody")
    async with asyncio.timeout(5):
        assert await cluster.choose("one", on("b")) == site("b")


async def test_where_nobody_is_any_more_because_the_node_is_lost_the_cluster_is_asked_again() -> None:
    cluster = Cluster(member("own"), member("b"), seen="nobody")
    cluster.told.append([member("own"), replace(member("b"), state="lost")])
    assert await cluster.choose("one", on("b")) == OWN


async def test_a_cluster_that_does_not_answer_is_told_and_holds_up_nobody_afterwards() -> None:
    cluster = Cluster(member("own"), member("b"))

    async def fail() -> list[Member]:
        raise WorkerLost("the cluster does not answer")

    choosing = Choosing(fail, cluster.look)
    effect = SpawnAgent(agent=AgentId("one"), round=1, base=BASE, text="", at_s=0)
    for _ in range(2):
        async with asyncio.timeout(5):
            with pytest.raises(WorkerLost):
                await choosing.choose(effect, NONE, _busy({}))
    assert await choosing.choose(effect, on(""), _busy({})) == OWN, "at home nobody asks the cluster"
