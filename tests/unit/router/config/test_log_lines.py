"""The log's format: one JSON object a line, as mongos writes it."""

import errno
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from router.config.log_lines import RECENT, LibraryLog, Repeats, configure_logging


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    before = logging.root.handlers[:]
    yield io.StringIO()
    logging.root.handlers[:] = before
    structlog.reset_defaults()


def test_log_lines_have_mongos_s_fields_in_order(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    structlog.get_logger().warning("Something", component="NETWORK", port=5, weird=object)
    (line,) = [json.loads(each) for each in stream.getvalue().splitlines()]
    assert list(line) == ["t", "s", "c", "ctx", "msg", "attr"]
    assert (line["s"], line["c"], line["msg"]) == ("W", "NETWORK", "Something")
    assert line["attr"]["port"] == 5
    assert RECENT.lines[-1] + "\n" == stream.getvalue()


def test_verbosity_selects_the_log_levels(stream: io.StringIO) -> None:
    for verbosity, quiet, said in ((0, False, 2), (1, False, 3), (0, True, 1)):
        stream.truncate(stream.seek(0))
        configure_logging(verbosity, quiet=quiet, stream=stream)
        log = structlog.get_logger()
        log.debug("debug")
        log.info("info")
        log.error("error")
        assert len(stream.getvalue().splitlines()) == said


class FullDisk(io.StringIO):
    """A stream that fails as a file on a full disk does, until ``full`` is False."""

    full = True

    def flush(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_failing_stream_does_not_fail_the_code_that_logs(stream: io.StringIO) -> None:
    disk, before = FullDisk(), RECENT.unwritten
    configure_logging(stream=disk)
    log = structlog.get_logger()
    log.info("first")
    assert RECENT.unwritten == before + 1
    assert '"first"' in RECENT.lines[-1]
    disk.full = False
    log.info("second")
    assert RECENT.unwritten == before + 1
    assert '"second"' in disk.getvalue()


def test_a_closed_stream_does_not_fail_the_code_that_logs(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    stream.close()
    structlog.get_logger().info("unheard")
    assert '"unheard"' in RECENT.lines[-1]


def test_a_warning_that_repeats_is_logged_once_a_minute_with_its_count() -> None:
    now = [0.0]
    repeats = Repeats(interval=60.0, most=2, clock=lambda: now[0])

    def logged(**event: Any) -> dict[str, Any] | None:
        try:
            return dict(repeats(None, "warning", event))
        except structlog.DropEvent:
            return None

    assert logged(event="down", shard="s0", lasted=0.1) is not None
    assert logged(event="down", shard="s1") is not None
    assert [logged(event="down", shard="s0", lasted=each) for each in (1.0, 2.0)] == [None, None]
    now[0] = 61.0
    assert logged(event="down", shard="s0") == {"event": "down", "shard": "s0", "repeated": 2}
    assert logged(event="down", shard="s0") is None
    assert logged(event="other") is not None
    assert repeats(None, "error", {"event": "down"}) == {"event": "down"}


def test_what_libraries_log_is_lines_of_the_log(stream: io.StringIO) -> None:
    now = [0.0]
    configure_logging(stream=stream)
    handler = LibraryLog(interval=60.0, clock=lambda: now[0])
    asyncio_log, other = logging.Logger("asyncio"), logging.Logger("pymongo.client")
    asyncio_log.addHandler(handler)
    other.addHandler(handler)

    def unexpected(error: LookupError | ValueError) -> None:
        try:
            raise error
        except (LookupError, ValueError):
            asyncio_log.exception("Task exception was never retrieved\nfuture: <Task %s>", error)

    def logged() -> list[dict[str, Any]]:
        lines = [json.loads(each) for each in stream.getvalue().splitlines()]
        stream.truncate(stream.seek(0))
        return lines

    for number in range(9):
        unexpected(KeyError(number))
    unexpected(ValueError("x"))
    first, second = logged()
    assert (first["s"], first["msg"]) == ("E", "Task exception was never retrieved")
    assert first["attr"]["details"] == "future: <Task 0>"
    assert first["attr"]["exception"].endswith("KeyError: 0")
    assert second["attr"]["exception"].endswith("ValueError: x")
    now[0] = 60.0
    unexpected(KeyError(9))
    assert [each["attr"]["repeated"] for each in logged()] == [8]
    other.info("nothing")
    other.warning("the server of %s has gone", "a", exc_info=OSError("closed"))
    (line,) = logged()
    assert (line["s"], line["msg"]) == ("W", "the server of a has gone")
    assert line["attr"] == {"library": "pymongo.client", "error": "closed"}
