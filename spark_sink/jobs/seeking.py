"""Sets a job to a later position of the stream, with a batch that has no events."""

from __future__ import annotations

from datetime import UTC, datetime

from spark_sink.errors import OptionError
from spark_sink.events.positions import AtTime, FromNow, Position, Token, after, is_after, key_of
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.options.values import cluster_time_position, resume_token


def seek(folder: JobFolder, to: str) -> str:
    """Plan the batch that leaves out all events before a position; return the position's time.

    A batch that was planned, and that not all tables have, is replaced: it has no further events.

    Args:
        to: a cluster time, or a token. The events at the time are read; those at the token's
            cluster time are not.

    Raises OptionError if `to` is no position, or if the job cannot be set there.
    """
    batches = folder.batches()
    done = [each for each in batches if each.committed is not None]
    if not done:
        raise OptionError(f"the job in {folder.address} has no batch: start it first")
    before = done[-1].end
    if before.running is not None:
        raise OptionError(
            f"the job in {folder.address} has a snapshot in progress, which goes on at every "
            "start: wait for its end"
        )
    position = _position(to)
    reached = batches[-1].end.position
    if isinstance(reached, FromNow) or not is_after(position, reached):
        raise OptionError(
            f"--to {to} is before the job's position ({key_of(reached)}): events would be in the "
            "tables twice. Start a job in another folder with startAtOperationTime"
        )
    kept, passed = before.signals.without_batch(), before.position
    sought = before.moved(position, heartbeat=before.heartbeat, signals=kept, sought=passed)
    folder.plan_batch(done[-1].number + 1, sought.write())
    return datetime.fromtimestamp(position.time.time, UTC).isoformat()


def _position(text: str) -> AtTime:
    for parse in (cluster_time_position, resume_token):
        try:
            found: Position = parse(text)
        except ValueError:
            continue
        if isinstance(found, Token):
            return after(found.cluster_time)
        assert isinstance(found, AtTime)
        return found
    raise OptionError(
        f"--to: must be a time such as 2026-01-31T12:00:00Z or a resume token, not {text!r}"
    )
