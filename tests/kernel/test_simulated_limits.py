"""Seed 004, simulated: run queue, tags, parallelism, pools (E1–E5, E11), and limits that change live."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations, pairwise

import pytest
from tests.support.worlds import (
    graph,
    items,
    needs,
    numbers,
    of,
    runs_at_once,
    settle,
    slots,
    step,
    world,
)

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.errors import InvalidInput
from locktender.base.graph import Item, Node, PoolNeed, Tag
from locktender.base.ids import run_of
from locktender.simulate.model import SimBody
from locktender.simulate.world import SimWorld

WHERE = pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
ONE = graph(step())
UNLIMITED = {("runs", ""): {"limit": -1}}


def started(sim: SimWorld) -> list[int]:
    """Runs in the order in which their first body began."""
    return list(dict.fromkeys(run_of(body.task) for body in sim.bodies))


def uneven(draw: random.Random, _node: Node) -> int:
    return draw.randint(1, 40) * MILLISECOND


# -- E1 --------------------------------------------------------------------------------------------


@WHERE
@pytest.mark.parametrize(("limit", "peak"), [(1, 1), (3, 3), (7, 7), (-1, 20)])
def test_e1_as_many_runs_as_the_limit_and_no_more(limit: int, peak: int, local: bool):
    sim = world(local=local, took=SECOND, rules={("runs", ""): {"limit": limit}})
    for _ in range(20):
        sim.submit(ONE)
    settle(sim)
    assert runs_at_once(sim) == peak


def test_e1_zero_is_refused_in_favour_of_pause():
    sim = world()
    sim.set_rule("runs", "", {"limit": 0})
    with pytest.raises(InvalidInput, match="pause"):
        _ = sim.model.limits


@WHERE
def test_e1_raised_lowered_paused_and_resumed_while_runs_wait(local: bool):
    sim = world(local=local, took=100 * MILLISECOND, rules={("runs", ""): {"limit": 2}})
    for _ in range(50):
        sim.submit(ONE)
    begin = sim.now
    for at, rule in (
        (250, {"limit": 6}),
        (550, {"limit": 1}),
        (1_150, {"limit": 3, "paused": True}),
        (2_000, {"limit": 3}),
    ):
        sim.plan(at * MILLISECOND, lambda rule=rule: sim.set_rule("runs", "", rule))
    settle(sim)

    def starts(low: int, high: int) -> int:
        at = [(body.start - begin) / MILLISECOND for body in sim.bodies]
        return sum(low <= each < high for each in at)

    assert starts(250, 260) >= 4  # raised: those who wait start at once
    assert runs_at_once(sim) == 6
    assert starts(700, 1_150) <= 5  # lowered: one after another, when the others have ended
    assert starts(1_160, 2_000) == 0
    assert starts(2_000, 2_010) == 3


# -- E2 --------------------------------------------------------------------------------------------


def tagged(sim: SimWorld, *tags: dict[str, str]) -> None:
    for each in tags:
        sim.submit(ONE, tags=each)


def peak_of(sim: SimWorld, **tags: str) -> int:
    def counts(body: SimBody) -> int:
        run = sim.model.runs[run_of(body.task)]
        return int(all(run.tags.get(key) == value for key, value in tags.items()))

    return sim.peak(counts)


@WHERE
def test_e2_key_value_and_each_value_at_once(local: bool):
    rules = UNLIMITED | {
        ("tag", "tenant=*"): {"key": "tenant", "per_value": True, "limit": 2},
        ("tag", "tenant=acme"): {"key": "tenant", "value": "acme", "limit": 1},
        ("tag", "team"): {"key": "team", "limit": 4},
    }
    sim = world(local=local, took=uneven, rules=rules)
    for _ in range(8):
        tagged(sim, {"tenant": "acme"}, {"tenant": "globex"}, {"team": "red"}, {"team": "blue"}, {})
        tagged(sim, {"tenant": "acme", "team": "red"})
    settle(sim)
    assert peak_of(sim, tenant="acme") == 1
    assert peak_of(sim, tenant="globex") == 2
    team = sim.peak(lambda body: int("team" in sim.model.runs[run_of(body.task)].tags))
    assert team == 4
    untagged = sim.peak(lambda body: int(not sim.model.runs[run_of(body.task)].tags))
    assert untagged == 8  # untagged runs are exempt


def test_e2_blocked_runs_are_overtaken_by_priority_then_age():
    rules = {
        ("runs", ""): {"limit": 2},
        ("tag", "tenant=*"): {"key": "tenant", "per_value": True, "limit": 1},
    }
    sim = world(took=100 * MILLISECOND, rules=rules)
    tagged(sim, {"tenant": "a"}, {"tenant": "a"}, {"tenant": "b"}, {"tenant": "c"})
    sim.submit(ONE, tags={"tenant": "d"}, priority=5)
    settle(sim)
    # 5 has priority; 1 is next by age; 2 is blocked by 1; then 3, and 2 before 4 when 1 has ended.
    assert started(sim) == [5, 1, 2, 3, 4]


@WHERE
def test_e2_a_tag_rule_set_live_counts_executing_runs(local: bool):
    sim = world(local=local, took=SECOND, rules=UNLIMITED)
    for _ in range(3):
        tagged(sim, {"tenant": "a"})
    rule = {"key": "tenant", "per_value": True, "limit": 3}
    sim.plan(100 * MILLISECOND, lambda: sim.set_rule("tag", "tenant=*", rule))
    sim.plan(200 * MILLISECOND, lambda: tagged(sim, *[{"tenant": "a"}] * 5))
    settle(sim)
    assert peak_of(sim, tenant="a") == 3


# -- E3, E4 ----------------------------------------------------------------------------------------


@WHERE
def test_e3_pool_and_parallelism_both_bound_a_run(local: bool):
    flow = graph(items("db", pools=needs(db=1)), items("other"), max_parallel=8)
    sim = world(local=local, took=100 * MILLISECOND, rules={("pool", "db"): {"limit": 2}})
    sim.submit(flow, consts=numbers(40))
    settle(sim)
    assert sim.peak(of("db")) == 2
    assert sim.peak(lambda _body: 1) == 8
    first = sorted(body.start for body in sim.bodies)[:8]
    assert len(set(first)) == 1  # side by side from the very start


def test_e3_parallelism_per_executor():
    flow = graph(
        items("a"), items("t", executor="thread"), max_parallel_by={"async": 5, "thread": 2}
    )
    sim = world(took=50 * MILLISECOND)
    sim.submit(flow, consts=numbers(20))
    settle(sim)
    assert (sim.peak(of("a")), sim.peak(of("t"))) == (5, 2)


@WHERE
def test_e4_no_level_barriers(local: bool):
    slow = {"slow": SECOND}
    sim = world(local=local, took=lambda _draw, node: slow.get(node.name, 10 * MILLISECOND))
    sim.submit(
        graph(step("slow"), step("quick"), step("next", after=(1,)), step("last", after=(2,)))
    )
    settle(sim)
    ends = {body.node.name: body.end for body in sim.bodies}
    assert ends["last"] < ends["slow"]


# -- E5 --------------------------------------------------------------------------------------------


@WHERE
@pytest.mark.parametrize("seed", range(4))
def test_e5_all_or_none_over_several_pools_with_weights(seed: int, local: bool):
    rules = UNLIMITED | {
        ("pool", "db"): {"limit": 3},
        ("pool", "api"): {"limit": 2},
        ("pool", "gpu"): {"limit": 4},
    }
    kinds = [dict(zip(pair, (1, 2), strict=True)) for pair in combinations(("db", "api", "gpu"), 2)]
    sim = world(seed=seed, local=local, workers=2, took=uneven, rules=rules)
    for index, kind in enumerate(kinds):
        flow = graph(items(pools=needs(**kind)), flow=f"flow{index}")
        sim.submit(flow, consts=numbers(15))
    settle(sim)
    for pool, limit in (("db", 3), ("api", 2), ("gpu", 4)):
        assert limit - 1 <= sim.peak(slots(pool)) <= limit
    assert len(sim.bodies) == 45


@WHERE
def test_e5_raised_lowered_paused_and_unset_live(local: bool):
    sim = world(local=local, took=100 * MILLISECOND, rules={("pool", "db"): {"limit": 2}})
    sim.submit(graph(items(pools=needs(db=1))), consts=numbers(100))
    begin = sim.now
    for at, rule in (
        (250, {"limit": 5}),
        (550, {"limit": 1}),
        (1_150, {"limit": 1, "paused": True}),
        (2_000, {"limit": 4}),
        (2_450, None),
    ):
        sim.plan(at * MILLISECOND, lambda rule=rule: sim.set_rule("pool", "db", rule))
    settle(sim)

    def held_at(at: int) -> int:
        now = begin + at * MILLISECOND
        return sum(body.start <= now < body.end for body in sim.bodies)

    # 10 ms after each change it is in force; lowered, the holders finish first.
    assert [held_at(at) for at in (200, 260, 540, 800, 1_500, 2_010)] == [2, 5, 5, 1, 0, 4]
    assert held_at(2_460) > 20  # unset: unlimited


def test_e5_slots_of_a_crashed_holder_are_free_after_its_lease():
    sim = world(workers=2, took=lambda _draw, node: SECOND, rules={("pool", "db"): {"limit": 1}})
    sim.submit(graph(items(pools=needs(db=1))), consts=numbers(3))
    sim.plan(500 * MILLISECOND, lambda: sim.kill_worker(sim.bodies[0].worker))
    settle(sim)
    killed, again, *_ = sim.bodies
    assert killed.state == "killed"
    assert again.start - killed.end <= 13 * SECOND
    assert sim.peak(slots("db")) == 1
    assert sim.model.runs[1].state == "succeeded"


def test_e5_a_pools_longer_lease_keeps_a_dead_holders_slot():
    rules = {("pool", "db"): {"limit": 1, "lease_us": 60 * SECOND}}
    sim = world(workers=2, took=SECOND, rules=rules)
    sim.submit(graph(items(pools=needs(db=1))), consts=numbers(2))
    sim.plan(500 * MILLISECOND, lambda: sim.kill_worker(sim.bodies[0].worker))
    settle(sim)
    killed, again, _ = sim.bodies
    assert 58 * SECOND <= again.start - killed.start <= 75 * SECOND


def test_e5_a_release_wakes_the_right_waiter_within_milliseconds():
    rules = UNLIMITED | {("pool", "db"): {"limit": 1}, ("pool", "api"): {"limit": 1}}
    sim = world(took=50 * MILLISECOND, rules=rules)
    for pool in ("db", "api"):
        for _ in range(10):
            sim.submit(graph(step(pools=needs(**{pool: 1})), flow=pool))
    settle(sim)
    for pool in ("db", "api"):
        ran = [body for body in sim.bodies if pool in body.pools]
        assert [body.task for body in ran] == sorted(body.task for body in ran)
        gaps = [after.start - before.end for before, after in pairwise(ran)]
        assert max(gaps) <= 5 * MILLISECOND


def test_e5_per_item_claims_of_keyed_pools():
    keyed = PoolNeed("site", 1, (Item(),))
    rules = {("pool", "site[*]"): {"limit": 1}, ("pool", "site[2]"): {"limit": 2}}
    sim = world(took=50 * MILLISECOND, rules=rules)
    sim.submit(graph(items(pools=(keyed,))), consts=b"[[1,1,1,2,2,2,3,3,3]]")
    settle(sim)
    peaks = {name: sim.peak(slots(name)) for name in ("site[1]", "site[2]", "site[3]")}
    assert peaks == {"site[1]": 1, "site[2]": 2, "site[3]": 1}


@WHERE
def test_e5_pools_keyed_by_a_tag_and_their_limits_changed_live(local: bool):
    keyed = PoolNeed("api", 1, (Tag("tenant"),))
    rules = UNLIMITED | {("pool", "api[*]"): {"limit": 2}}
    sim = world(local=local, took=100 * MILLISECOND, rules=rules)
    for tenant in ("a", "b"):
        sim.submit(graph(items(pools=(keyed,))), consts=numbers(30), tags={"tenant": tenant})
    begin = sim.now
    sim.plan(350 * MILLISECOND, lambda: sim.set_rule("pool", "api[a]", {"limit": 5}))
    settle(sim)
    early = [body for body in sim.bodies if body.start < begin + 300 * MILLISECOND]
    assert Counter(pool for body in early for pool in body.pools) == {"api[a]": 6, "api[b]": 6}
    assert sim.peak(slots("api[a]")) == 5
    assert sim.peak(slots("api[b]")) == 2


# -- rates -----------------------------------------------------------------------------------------


@WHERE
@pytest.mark.parametrize("leaders", [0, 4])
def test_a_rate_is_exact_over_every_window_also_across_leaders(leaders: int, local: bool):
    rate = {"count": 10, "per_us": SECOND, "burst": 3}
    rules = {("pool", "api"): {"limit": -1, "rate": rate}}
    sim = world(local=local, rules=rules)
    sim.submit(graph(items(pools=needs(api=1))), consts=numbers(40))
    for index in range(leaders):
        sim.plan((index + 1) * 700 * MILLISECOND, sim.lead)
    settle(sim)
    grants = [event.at for event in sim.model.events if event.after == "scheduled"]
    for first, last in combinations(range(len(grants)), 2):
        assert last - first + 1 <= 3 + 10 * (grants[last] - grants[first]) / SECOND
    # And nothing of it is wasted: 37 grants after the burst at ten a second.
    assert grants[-1] - grants[0] <= 3_700 * MILLISECOND + leaders * 100 * MILLISECOND


# -- fairness --------------------------------------------------------------------------------------


@WHERE
def test_fair_turns_share_a_pool_by_weight_whatever_the_backlogs(local: bool):
    rules = UNLIMITED | {
        ("pool", "db"): {"limit": 1},
        ("fair", "tenant"): {"key": "tenant", "weights": {"gold": 3}},
    }
    sim = world(local=local, rules=rules)
    for tenant, count in (("crowd", 200), ("gold", 60), ("small", 20)):
        sim.submit(graph(items(pools=needs(db=1))), consts=numbers(count), tags={"tenant": tenant})
    settle(sim)
    who = [sim.model.runs[run_of(body.task)].tags["tenant"] for body in sim.bodies]
    share = Counter(who[:100])
    assert (share["gold"], share["crowd"], share["small"]) == (60, 20, 20)


def test_fair_turns_share_the_run_queue():
    rules = {("runs", ""): {"limit": 1}, ("fair", "tenant"): {"key": "tenant"}}
    sim = world(rules=rules)
    tagged(sim, *[{"tenant": "crowd"}] * 20, *[{"tenant": "late"}] * 3)
    settle(sim)
    who = [sim.model.runs[run].tags["tenant"] for run in started(sim)]
    assert who[:6].count("late") == 3


# -- nobody starves --------------------------------------------------------------------------------


@WHERE
@pytest.mark.parametrize("max_bypass", [0, 3, 16])
def test_a_wide_task_is_not_starved_by_a_stream_of_narrow_ones(max_bypass: int, local: bool):
    rules = UNLIMITED | {
        ("pool", "db"): {"limit": 3},
        ("engine", "max_bypass"): {"value": max_bypass},
    }
    sim = world(local=local, took=uneven, rules=rules)
    narrow = graph(items("narrow", pools=needs(db=1), window=6), flow="narrow")
    wide = graph(step("wide", pools=needs(db=3)), flow="wide")
    sim.submit(narrow, consts=numbers(150))
    sim.plan(50 * MILLISECOND, lambda: sim.submit(wide))
    for at in range(60, 1_200, 40):
        sim.plan(at * MILLISECOND, lambda: sim.submit(narrow, consts=numbers(8)))
    settle(sim)
    [body] = [body for body in sim.bodies if body.node.name == "wide"]
    asked = next(row.requested_at for row in sim.model.tasks.values() if row.id == body.task)
    overtaken = [
        each
        for each in sim.bodies
        if asked < each.start < body.start and sim.model.tasks[each.task].requested_at > asked
    ]
    assert len(overtaken) <= max_bypass


# -- E11 -------------------------------------------------------------------------------------------


@WHERE
def test_e11_fifty_claimers_of_a_pool_of_one(local: bool):
    rules = UNLIMITED | {("pool", "db"): {"limit": 1}}
    sim = world(local=local, took=100 * MILLISECOND, rules=rules)
    for _ in range(50):
        sim.submit(graph(step(pools=needs(db=1))))
    sim.run(until=sim.now + 50 * MILLISECOND)
    states = Counter(row.state for row in sim.model.tasks.values())
    assert states == {"running": 1, "requested": 49}
    settle(sim)
    assert sim.peak(slots("db")) == 1
    assert len(sim.bodies) == 50
