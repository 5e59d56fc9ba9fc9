"""Which row it is under which engines die."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from inflight_client import InflightError

from inflight.batch.dispatch.poison_rows import LOSSES_PER_CRASH, PoisonRowFinder
from inflight.batch.job.rows import GenerateRequest, Row
from tests.batch.scripted_backend import DispatchRun, ListFeed, ScriptedBackend

ROWS = [Row(number, number + 1, str(number), GenerateRequest("x", 1)) for number in range(16)]


def find(suspects: PoisonRowFinder, poison: set[int], died: bool = True) -> tuple[list[int], int]:
    """Try all groups; who was condemned, and how often the engine died for it."""
    condemned, deaths = [], 0
    while (group := suspects.next_group("home")) is not None:
        if poison.isdisjoint(row.number for row in group.rows):
            continue
        deaths += 1
        condemned += [row.number for row in suspects.add_group_crash("home", group, group.rows, died)]
    return condemned, deaths


@pytest.mark.parametrize("poison", [set(), {0}, {7}, {3, 12}], ids=str)
def test_the_guilty_are_found_and_nobody_else(poison: set[int]) -> None:
    suspects = PoisonRowFinder(max_engine_crashes=3)
    suspects.add_crash("home", ROWS)
    condemned, deaths = find(suspects, poison)
    assert sorted(condemned) == sorted(poison)
    assert suspects.empty
    assert deaths <= len(poison) * (4 + 3)


def test_who_was_answered_before_the_death_is_clear() -> None:
    suspects = PoisonRowFinder(max_engine_crashes=1)
    suspects.add_crash("home", ROWS)
    group = suspects.next_group("home")
    assert group is not None
    suspects.add_group_crash("home", group, ROWS[4:6], engine_died=True)
    tried = [suspects.next_group("home"), suspects.next_group("home"), suspects.next_group("home")]
    assert [None if group is None else [row.number for row in group.rows] for group in tried] == [[4], [5], None]


def test_deaths_are_told_and_go_on_where_an_earlier_life_was() -> None:
    noted: list[tuple[int, int]] = []
    suspects = PoisonRowFinder(3, {5: 2}, lambda number, deaths: noted.append((number, deaths)))
    suspects.add_known_suspect(ROWS[5])
    assert find(suspects, {5}) == ([5], 1)
    assert noted == [(5, 3)]


@pytest.mark.parametrize("kills", [1, 3])
def test_lost_connections_count_as_one_death_only_so_many_together(kills: int) -> None:
    suspects = PoisonRowFinder(kills)
    suspects.add_crash("home", ROWS[:1])
    assert find(suspects, {0}, died=False) == ([0], kills * LOSSES_PER_CRASH)
    suspects = PoisonRowFinder(max_engine_crashes=1)
    suspects.add_crash("home", ROWS)
    assert find(suspects, set(), died=False) == ([], 0)


def test_a_group_waits_for_its_own_server_unless_that_is_away() -> None:
    suspects = PoisonRowFinder(max_engine_crashes=3)
    suspects.add_crash("home", ROWS)
    assert suspects.next_group("another") is None
    assert suspects.next_group("another", is_unavailable=lambda home: home == "home") is not None


def dying(poison: Sequence[str]) -> ScriptedBackend:
    """A server whose engine dies as soon as it has such a prompt, with all that is in flight, and comes back."""
    lives = [asyncio.Event()]

    async def behave(server: ScriptedBackend, prompt: str) -> str | InflightError:
        life = lives[-1]
        if prompt in poison:
            await asyncio.sleep(0.005)
            life.set()
            lives.append(asyncio.Event())
        try:
            async with asyncio.timeout(0.02):
                await life.wait()
        except TimeoutError:
            return prompt
        return InflightError("the engine died", "engine_died")

    return ScriptedBackend(behave)


async def test_one_row_that_kills_engines_is_set_aside_and_all_others_are_answered() -> None:
    prompts = [f"prompt {number}" for number in range(60)]
    server = dying(prompts[30:31])
    asked = await DispatchRun([server], ListFeed(prompts), concurrency=16, max_engine_crashes=2).run()
    assert asked.errors == {30: "row_crashed_engine"}
    assert sorted(asked.answers) == [number for number in range(60) if number != 30]
    assert [deaths for _, deaths in asked.recorded.noted] == [1, 2]
    assert asked.attempts[30] == server.asked.count("prompt 30")


async def test_a_row_under_which_engines_died_in_another_life_is_asked_alone() -> None:
    prompts = [f"prompt {number}" for number in range(30)]
    server = dying(prompts[3:4])
    asked = await DispatchRun(
        [server], ListFeed(prompts), crash_counts={3: 2}, concurrency=8, max_engine_crashes=3
    ).run()
    assert asked.errors == {3: "row_crashed_engine"}
    assert all(len(prompts_sent) == 1 for prompts_sent in server.together if "prompt 3" in prompts_sent)
    assert sum(asked.attempts.values()) == 30
