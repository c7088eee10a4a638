"""What every store must do, as tests that any implementation can be run through.

A test module of an implementation imports the suites and gives them a fixture:

    from headgate.testing.conformance import *  # the Test… classes

    @pytest.fixture
    async def world(tmp_path):
        clock = ManualClock()
        world = World(lambda: MyStore(tmp_path / "db", clock), clock)
        yield world
        await world.close()

`world.open()` opens one more store on the same data: another process, as far
as the protocol can tell. Time moves only by `world.clock`.
"""

from headgate.testing.conformance.ceilings import TestCeilings
from headgate.testing.conformance.committing import TestCommitting
from headgate.testing.conformance.gathering import TestGathering
from headgate.testing.conformance.keys import TestKeys
from headgate.testing.conformance.leading import TestLeading
from headgate.testing.conformance.limiting import TestLimiting
from headgate.testing.conformance.looking import TestLooking
from headgate.testing.conformance.provisioning import TestProvisioning
from headgate.testing.conformance.pruning import TestPruning, TestSweeping
from headgate.testing.conformance.queueing import TestQueueing
from headgate.testing.conformance.racing import TestRacing
from headgate.testing.conformance.recovering import TestRecovering
from headgate.testing.conformance.retrying import TestRetrying
from headgate.testing.conformance.submitting import TestSubmitting
from headgate.testing.conformance.waking import TestWaking
from headgate.testing.conformance.working import TestWorking
from headgate.testing.conformance.world import Leader, World, new_run

__all__ = [
    "Leader",
    "TestCeilings",
    "TestCommitting",
    "TestGathering",
    "TestKeys",
    "TestLeading",
    "TestLimiting",
    "TestLooking",
    "TestProvisioning",
    "TestPruning",
    "TestQueueing",
    "TestRacing",
    "TestRecovering",
    "TestRetrying",
    "TestSubmitting",
    "TestSweeping",
    "TestWaking",
    "TestWorking",
    "World",
    "new_run",
]
