"""What every store must do, as tests that any implementation can be run through.

A test module of an implementation imports the suites and gives them a fixture:

    from locktender.testing.conformance import *  # the Test… classes

    @pytest.fixture
    async def world(tmp_path):
        clock = ManualClock()
        world = StoreScene(lambda: MyStore(tmp_path / "db", clock), clock)
        yield world
        await world.close()

`world.open()` opens one more store on the same data: another process, as far
as the protocol can tell. Time moves only by `world.clock`.
"""

from locktender.testing.conformance.admission import TestCeilings, TestKeys, TestRetrying
from locktender.testing.conformance.caching import TestCaching
from locktender.testing.conformance.committing import TestCommitting
from locktender.testing.conformance.examining import TestExamining
from locktender.testing.conformance.key_lines import TestBoundedKeys, TestThrottles
from locktender.testing.conformance.leading import TestHolding, TestLeading, TestProvisioning
from locktender.testing.conformance.limiting import TestLimiting
from locktender.testing.conformance.mailing import TestMailing
from locktender.testing.conformance.naming import TestNaming, TestScheduling
from locktender.testing.conformance.pruning import TestPruning, TestSweeping
from locktender.testing.conformance.queueing import TestQueueing
from locktender.testing.conformance.reading import TestGathering, TestLooking
from locktender.testing.conformance.recovering import TestRacing, TestRecovering
from locktender.testing.conformance.submitting import TestSubmitting
from locktender.testing.conformance.tokens import TestClaimedKeys, TestTokens
from locktender.testing.conformance.waiting import TestWaiting
from locktender.testing.conformance.working import TestWaking, TestWorking
from locktender.testing.conformance.world import SceneLeader, StoreScene, new_run

__all__ = [
    "SceneLeader",
    "StoreScene",
    "TestBoundedKeys",
    "TestCaching",
    "TestCeilings",
    "TestClaimedKeys",
    "TestCommitting",
    "TestExamining",
    "TestGathering",
    "TestHolding",
    "TestKeys",
    "TestLeading",
    "TestLimiting",
    "TestLooking",
    "TestMailing",
    "TestNaming",
    "TestProvisioning",
    "TestPruning",
    "TestQueueing",
    "TestRacing",
    "TestRecovering",
    "TestRetrying",
    "TestScheduling",
    "TestSubmitting",
    "TestSweeping",
    "TestThrottles",
    "TestTokens",
    "TestWaiting",
    "TestWaking",
    "TestWorking",
    "new_run",
]
