"""The commands that open the cursors of a stream's remotes, the first time and after failures."""

from collections.abc import Callable, Mapping

from router.change_stream.actions import OpenRemote, ReopenRemote
from router.change_stream.plan import shard_command, topology_command
from router.change_stream.progress_command import progress_command
from router.change_stream.request import StreamRequest
from shard_client.remote_cursor.remote_cursor import Opening

_Command = tuple[str, Mapping[str, object]]


def opening_of(request: StreamRequest, action: OpenRemote | ReopenRemote) -> Opening:
    """Return a function that builds a remote's command: from its start, or after a promise."""

    def opening(pbrt: bytes | None) -> _Command:
        if isinstance(action, OpenRemote) and action.topology:
            if pbrt is None:
                return topology_command(action.start_at)
            return topology_command(resume_after=pbrt)
        if pbrt is not None:
            return shard_command(request, resume_after=pbrt)
        if isinstance(action, OpenRemote):
            return shard_command(request, start_at=action.start_at)
        return shard_command(request, start_after=action.start_after)

    return opening


def progress_opening_of(opening: Opening) -> Callable[[bytes], _Command]:
    """Return a function that builds a progress cursor's command from a remote's ``opening``."""

    def progress_opening(pbrt: bytes) -> _Command:
        return progress_command(*opening(pbrt), pbrt)

    return progress_opening
