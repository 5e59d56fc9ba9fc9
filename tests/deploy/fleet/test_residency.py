"""Which models are in memory, with a hand-driven clock."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.deploy.fleet.residency import Grant, Limits, Load, ModelState, Refuse, Residency, Unload

RESIDENCE = 10.0
MEMORY = 4


class World:
    """Performs the actions of a residency, each load and unload in a second, and checks what must never happen."""

    def __init__(self, *models: ModelState, memory: int = MEMORY, idle: float | None = None) -> None:
        self.residency = Residency(Limits(memory, RESIDENCE, idle), models)
        self.now = 0.0
        self.granted: dict[int, float] = {}
        self.refused: dict[int, Refuse] = {}
        self.loads: dict[str, list[float]] = {model.name: [] for model in models}
        self.broken: set[str] = set()
        self._ends: list[tuple[float, str, str]] = []
        self.settle()

    def use(self, model: str, request: int) -> None:
        self.residency.use(model, request)
        self.settle()

    def done(self, request: int) -> None:
        self.residency.done(request, self.now)
        self.settle()

    def settle(self) -> None:
        for action in self.residency.step(self.now):
            match action:
                case Load(name):
                    assert not any(kind == "load" for _, kind, _ in self._ends), "one load at a time"
                    self._ends.append((self.now + 1, "load", name))
                case Unload(name):
                    model = self.residency.models[name]
                    assert not model.holds
                    assert not model.pinned
                    assert self.now >= model.began + RESIDENCE
                    self._ends.append((self.now + 1, "unload", name))
                case Grant(request):
                    self.granted[request] = self.now
                case Refuse(request):
                    self.refused[request] = action
        assert self.residency.used <= self.residency.limits.memory
        for model in self.residency.models.values():
            assert model.in_memory or not (model.holds & self.granted.keys())

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            for each in sorted(end for end in self._ends if end[0] <= self.now):
                self._ends.remove(each)
                _, kind, name = each
                if kind == "unload":
                    self.residency.unloaded(name, self.now)
                elif name in self.broken:
                    self.residency.failed(name, "damaged", self.now)
                else:
                    self.residency.loaded(name, self.now)
                    self.loads[name].append(self.now)
            self.settle()

    def state(self, name: str) -> str:
        return self.residency.models[name].state


def three(**pinned: bool) -> list[ModelState]:
    return [ModelState(name, 2, pinned=pinned.get(name, False)) for name in "abc"]


def test_the_least_recently_used_model_without_requests_makes_room_after_its_residence() -> None:
    world = World(*three())
    world.use("a", 1)
    world.run(2)
    world.use("b", 2)
    world.run(2)
    world.done(1)  # now b is busy, and a was used last
    world.use("c", 3)
    assert world.residency.seconds("c", world.now) == pytest.approx(1 + RESIDENCE - 4 + 10)
    world.run(RESIDENCE - 4)
    assert (world.state("a"), world.state("b")) == ("loaded", "loaded")
    world.run(2 + 1)
    assert (world.state("a"), world.state("b"), world.state("c")) == ("unloaded", "loaded", "loaded")
    assert world.granted.keys() == {1, 2, 3}


def test_requests_that_share_a_hold_are_uses() -> None:
    world = World(*three())
    world.use("a", 1)
    world.run(3)
    world.use("b", 2)
    world.run(RESIDENCE + 3)
    world.residency.used_again("a", world.now)
    world.use("c", 3)
    assert (world.state("a"), world.state("b")) == ("loaded", "draining")


def test_a_busy_victim_is_drained_and_its_new_requests_wait_behind_the_load() -> None:
    world = World(*three(a=True))
    world.use("b", 1)
    world.run(RESIDENCE + 2)
    world.use("c", 2)
    assert world.state("b") == "draining"
    world.use("b", 3)
    world.run(100)
    assert 2 not in world.granted
    assert 3 not in world.granted
    world.done(1)
    world.run(3)
    assert 2 in world.granted
    assert 3 not in world.granted
    world.done(2)
    world.run(RESIDENCE + 3)
    assert 3 in world.granted
    assert world.loads["b"][1] - world.loads["b"][0] >= RESIDENCE


def test_a_victim_serves_again_if_the_load_is_not_wanted_any_more() -> None:
    world = World(*three(a=True))
    world.use("b", 1)
    world.run(RESIDENCE + 2)
    world.use("c", 2)
    world.use("b", 3)
    world.done(2)
    assert world.state("b") == "loaded"
    assert 3 in world.granted


def test_a_small_model_does_not_wait_for_a_large_one_unless_it_would_take_its_room() -> None:
    world = World(ModelState("a", 2), ModelState("big", 3), ModelState("c", 1), ModelState("d", 2))
    world.use("a", 1)
    world.run(RESIDENCE + 2)
    for number, name in enumerate(("big", "d", "c"), 2):
        world.use(name, number)
    world.run(50)
    assert world.granted.keys() == {1, 4}
    world.done(1)
    world.run(3)
    assert world.granted.keys() == {1, 2, 4}


def test_a_failed_load_is_refused_with_a_pause_that_grows_and_others_are_loaded() -> None:
    world = World(*three())
    world.broken.add("a")
    world.use("a", 1)
    world.use("b", 2)
    world.run(2)
    assert world.refused[1].message == "damaged"
    assert world.refused[1].seconds == 5
    assert 2 in world.granted
    world.use("a", 3)
    assert 3 in world.refused
    world.run(6)
    world.use("a", 4)
    world.run(1)
    assert world.refused[4].seconds == 10
    world.broken.clear()
    world.run(11)
    world.use("a", 5)
    world.run(1)
    assert 5 in world.granted
    assert world.residency.models["a"].failures == 0


def test_idle_models_leave_and_pinned_ones_stay() -> None:
    world = World(*three(a=True), idle=30)
    world.use("b", 1)
    world.run(40)
    assert world.state("b") == "loaded"
    world.done(1)
    world.run(29)
    assert world.state("b") == "loaded"
    world.run(2)
    assert (world.state("a"), world.state("b")) == ("loaded", "unloaded")


STEPS = st.lists(
    st.tuples(st.sampled_from(("use", "done", "leave", "run", "break")), st.integers(0, 3), st.floats(0.1, 15)),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(sizes=st.lists(st.integers(1, 3), min_size=2, max_size=4), pinned=st.booleans(), steps=STEPS, idle=st.booleans())
def test_never_over_the_memory_no_open_answer_ended_and_everybody_is_answered(
    sizes: list[int], pinned: bool, steps: list[tuple[str, int, float]], idle: bool
) -> None:
    models = [ModelState(f"m{number}", size) for number, size in enumerate(sizes)]
    if pinned:
        models.append(ModelState("pinned", 1, pinned=True))
    world = World(*models, idle=20 if idle else None)
    asked, ended = 0, set()
    for what, which, seconds in steps:
        name = models[which % len(sizes)].name
        if what == "use":
            asked += 1
            world.use(name, asked)
        elif what == "run":
            world.run(seconds)
        elif what == "break":
            world.broken ^= {name}
        elif asked and (request := 1 + which % asked) not in ended and (what == "leave" or request in world.granted):
            ended.add(request)
            world.done(request)
    for _ in range(10 * (asked + 1)):
        for request in sorted(world.granted.keys() - ended):
            ended.add(request)
            world.done(request)
        world.run(RESIDENCE)
    answered = world.granted.keys() | world.refused.keys() | ended
    assert answered == set(range(1, asked + 1))
    for times in world.loads.values():
        assert all(later - earlier >= RESIDENCE for earlier, later in pairwise(times))
