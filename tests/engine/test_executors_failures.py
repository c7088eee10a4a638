"""How errors become failures, and how frames survive any cutting of the stream."""

from __future__ import annotations

import signal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locktender.base.errors import Unserialisable
from locktender.base.model import Failure
from locktender.flows.steps import Fatal, Retry
from locktender.worker.executors import failures
from locktender.worker.executors.child_protocol import (
    MAX_FRAME_BYTES,
    Frames,
    Report,
    decode_report,
    frame,
)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


@pytest.mark.parametrize(
    ("error", "retry_on", "retryable"),
    [
        (ValueError("x"), None, True),
        (ValueError("x"), (ValueError,), True),
        (ValueError("x"), (OSError,), False),
        (ConnectionResetError("x"), (OSError,), True),
        (SystemExit(1), None, True),
        (SystemExit(1), (Exception,), False),
        (Fatal("x"), None, False),
        (Fatal("x"), (Exception,), False),
        (Retry("x"), (OSError,), True),
    ],
)
def test_what_may_be_retried(
    error: BaseException, retry_on: tuple[type[BaseException], ...] | None, retryable: bool
):
    assert failures.of_exception(raised(error), retry_on).retryable is retryable


def test_retry_says_when():
    assert failures.of_exception(raised(Retry(after="30s")), None).retry_after_us == 30_000_000
    assert failures.of_exception(raised(Retry()), None).retry_after_us is None


def test_timeouts_are_retried_like_the_error_of_that_name():
    assert failures.timed_out(1_000_000, None).retryable
    assert failures.timed_out(1_000_000, (TimeoutError,)).retryable
    assert failures.timed_out(1_000_000, (OSError,)).retryable
    assert not failures.timed_out(1_000_000, (ValueError,)).retryable


def test_an_error_that_cannot_be_shown():
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    failure = failures.of_exception(raised(Broken()), None)

    assert failure.type == "Broken"
    assert "cannot be shown" in failure.message


def test_an_error_that_exits_when_it_is_shown():
    class Leaving(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    error = raised(Leaving())
    for failure in (
        failures.internal(error), failures.bad_call(error), failures.of_exception(error, None)
    ):  # fmt: skip
        assert "(its message cannot be shown: SystemExit)" in failure.message
        assert "Leaving" in (failure.traceback or "")


def test_a_name_is_bounded():
    error = type("x" * 1_000, (Exception,), {})

    assert len(failures.of_exception(raised(error()), None).type) <= failures.MAX_NAME


def test_messages_are_bounded_and_can_be_encoded():
    failure = failures.of_exception(raised(ValueError("\ud800" + "x" * 100_000 + "the end")), None)

    assert len(failure.message.encode()) <= failures.MAX_MESSAGE
    assert failure.message.endswith("the end")
    assert failure.traceback is not None
    assert len(failure.traceback.encode()) <= failures.MAX_TRACEBACK
    assert msgspec.json.decode(msgspec.json.encode(failure), type=Failure) == failure


def test_a_deep_traceback_is_bounded():
    def rise(depth: int) -> None:
        dive(depth - 1)  # two functions in turn: equal frames would be folded into one line

    def dive(depth: int) -> None:
        if depth:
            rise(depth)
        raise ValueError("bottom")

    with pytest.raises(ValueError) as caught:
        dive(300)
    failure = failures.of_exception(caught.value, None)

    assert failure.traceback is not None
    assert len(failure.traceback.encode()) <= failures.MAX_TRACEBACK
    assert failure.traceback.rstrip().endswith("ValueError: bottom")


def test_causes_are_kept():
    def load() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(ValueError) as caught:
        load()
    failure = failures.of_exception(caught.value, None)

    assert failure.traceback is not None
    assert "KeyError: 'inner'" in failure.traceback


def test_an_error_without_words_has_its_name():
    assert failures.of_exception(raised(ValueError()), None).message == "ValueError"


def test_a_result_that_does_not_serialise_shows_the_hint():
    failure = failures.unserialisable(
        raised(Unserialisable("result is a set.", hint="Use a list."))
    )

    assert (failure.type, failure.retryable) == ("unserialisable_result", False)
    assert failure.message == "result is a set. Use a list."


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGKILL, "SIGKILL (out of memory?)"),
        (-signal.SIGSEGV, "killed by SIGSEGV"),
        (-62, "signal 62"),
        (0, "exit code 0"),
        (3, "exit code 3"),
    ],
)
def test_crashes_say_how(code: int, words: str):
    failure = failures.crashed(code)

    assert (failure.type, failure.retryable) == ("worker_crashed", True)
    assert words in failure.message


def test_a_child_that_the_worker_has_killed_says_why():
    failure = failures.crashed(-signal.SIGKILL, "it has closed its line")

    assert failure.message.endswith("was ended by its worker: it has closed its line")


def test_our_own_errors_are_marked():
    failure = failures.internal(raised(KeyError("x")))

    assert failure.type == "internal"
    assert failure.message.startswith("internal: KeyError")


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 40))
def test_frames_survive_any_cutting(outputs: list[bytes], size: int):
    sent = [Report(token, "completed", output) for token, output in enumerate(outputs, 1)]
    stream = b"".join(frame(each) for each in sent)
    frames = Frames()

    got = [
        decode_report(body)
        for start in range(0, len(stream), size)
        for body in frames.feed(stream[start : start + size])
    ]

    assert got == sent


def test_a_frame_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="broken"):
        Frames().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))


def test_a_failure_survives_the_line():
    report = Report(1, "failed", None, Failure("ValueError", "x", "trace", False, 5, "node"))

    assert decode_report(frame(report)[4:]) == report
