"""No task starves, and no slot is reserved for a task that could not start anyway."""

from __future__ import annotations

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.graph import Const, Graph, Item, Node, PoolNeed
from locktender.simulate.model import Behaviour
from locktender.simulate.scenarios import violations
from locktender.simulate.world import SimWorld

NARROW = Graph(
    "narrow",
    (
        Node(
            "n",
            "narrow",
            executor="async",
            args=(Item(),),
            over=Const(0),
            pools=(PoolNeed("db"),),
        ),
    ),
)
MANY = b"[[" + b",".join(b"%d" % index for index in range(200)) + b"]]"


def wide(**options: object) -> Graph:
    node = Node("w", "wide", executor="async", pools=(PoolNeed("db", 2),), **options)  # pyright: ignore[reportArgumentType]
    return Graph("wide", (node,))


def world() -> SimWorld:
    made = SimWorld(1, Behaviour(lambda draw, _: draw.randint(5, 20) * MILLISECOND))
    made.set_rule("pool", "db", {"limit": 2})
    made.set_rule("engine", "max_bypass", {"value": 2})
    made.add_worker("w0", {"async": 50}, local=True)
    made.lead()
    return made


def bodies(made: SimWorld, name: str) -> int:
    return sum(body.node.name == name for body in made.bodies)


def test_e5_a_wide_task_without_worker_reserves_nothing():
    made = world()
    made.submit(NARROW, consts=MANY)
    made.run(made.now + SECOND // 20)
    made.submit(wide(needs={"gpu": "yes"}), priority=5)
    made.run(made.now + 10 * SECOND)
    assert bodies(made, "n") == 200
    assert bodies(made, "w") == 0
    assert violations(made, complete=False) == []


def test_e5_a_wide_task_starts_after_max_bypass():
    made = world()
    made.submit(NARROW, consts=MANY)
    made.run(made.now + SECOND // 20)
    before = bodies(made, "n")
    made.submit(wide(), priority=5)
    made.run(made.now + SECOND // 5)
    assert bodies(made, "w") == 1
    started = [body.node.name for body in made.bodies][before:]
    assert started.index("w") <= 2 + 2
    made.run()
    assert violations(made) == []


def test_b2_an_unanswered_offer_goes_to_another_worker():
    made = SimWorld(1, Behaviour(lambda _draw, _node: MILLISECOND))
    deaf = made.add_worker("deaf", {"async": 1})
    made.set_rule("engine", "placement", {"value": "pack"})
    made.lead()
    deaf.deaf = True
    made.submit(Graph("one", (Node("a", "a", executor="async"),)))
    made.run(made.now + SECOND // 2)
    made.add_worker("awake", {"async": 1})
    made.run(made.now + 4 * SECOND)
    assert [(body.worker, body.state) for body in made.bodies] == [("awake", "completed")]
    assert violations(made) == []


def test_e5_lingering_slots_survive_a_change_of_leader():
    made = SimWorld(1, Behaviour(lambda _draw, _node: 60 * SECOND))
    made.set_rule("pool", "db", {"limit": 1, "lease_us": 30 * SECOND})
    made.add_worker("dies", {"async": 5})
    made.lead()
    made.submit(Graph("one", (Node("a", "a", executor="async", pools=(PoolNeed("db"),)),)))
    made.run(made.now + SECOND)
    died = made.now
    made.kill_worker("dies")
    made.add_worker("lives", {"async": 5})
    made.run(died + 15 * SECOND)
    made.lead()
    made.run(died + 25 * SECOND)
    assert [body.worker for body in made.bodies] == ["dies"]
    made.run(died + 50 * SECOND)
    assert [body.worker for body in made.bodies] == ["dies", "lives"]
    assert made.bodies[1].start >= died + 28 * SECOND
