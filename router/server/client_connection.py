"""One client's connection: answers its requests in the order of arrival."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import structlog

from router.access.authorization import login_required, not_for_certificates
from router.access.mongos_commands import NEED_LOGIN
from router.commands.answer import (
    PASS_THROUGH,
    Answer,
    AnyAnswer,
    PassThrough,
    RawAnswer,
    ToWorker,
    error_document,
    reply_document,
)
from router.commands.call import ON_BEHALF_OF, Call, Client
from router.commands.fail_points import added_to_reply, before_command, share_with_workers
from router.commands.local_only import LOCAL_ONLY, refused
from router.commands.node import Counters, Node
from router.commands.retry_labels import with_retry_labels
from router.commands.shutdown import interrupted, shutting_down
from router.commands.table import COMMANDS
from router.server.client_deadlines import ClientDeadlines, Progress
from router.server.first_message import ForeignProtocolError
from router.server.replies import ReplyWriter
from router.server.request import Request, read_request
from router.tls.handshake import log_refused_client
from shard_client.cluster_clock import is_signed
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError, ProtocolError
from shard_client.wire.bson_slices import find
from shard_client.wire.documents import decode, encode
from shard_client.wire.frame_protocol import FrameStream
from shard_client.wire.frames import BODY_OFFSET, MAX_MESSAGE_SIZE, MORE_TO_COME, build_msg

log = structlog.get_logger()

_LEGACY_URL = "https://dochub.mongodb.org/core/legacy-opcode-removal"
_LEGACY_COMMANDS = frozenset({"hello", "isMaster", "ismaster", "buildInfo", "buildinfo"})
_KINDS = {
    "insert": "insert",
    "find": "query",
    "update": "update",
    "delete": "delete",
    "getMore": "getmore",
}


class ClientConnection:
    """Reads a client's requests one at a time, runs them and writes the replies.

    Pipelined requests wait in the socket. When the client disconnects, its running command is
    cancelled and its upstream connection is cut (docs/design.md#what-a-driver-sees).

    ``idle`` is set while no command is in flight.

    Args:
        stream: the frames of the connection.
        node: the state that all commands share.
        client: the client's state, as commands see it.
        counters: the counters for the connection's traffic.
    """

    def __init__(self, stream: FrameStream, node: Node, client: Client, counters: Counters) -> None:
        self.client = client
        self.idle = asyncio.Event()
        self.idle.set()
        self._stream = stream
        self._node = node
        self._counters = counters
        self._replies = ReplyWriter(stream, counters)
        self._messages = 0
        self._limits = node.client_limits
        self._deadlines = ClientDeadlines(self._limits, asyncio.get_running_loop().time())
        self._has_logged_in = client.login is None
        if not self._has_logged_in:
            stream.max_frame = self._limits.message_size_before_login
        self._task: asyncio.Task[None] | None = None
        self._interrupted = False

    async def serve(self) -> None:
        """Answer until the client disconnects or breaks the protocol, then release everything."""
        try:
            while (frame := await self._stream.receive(bytes)) is not None:
                self.idle.clear()
                self._messages += 1
                self._counters.bytes_in += len(frame)
                await self._take(await read_request(frame, self._stream.max_frame))
                if not self._has_logged_in:
                    self._note_login()
                self.idle.set()
        except ForeignProtocolError as error:
            log_refused_client(self.client.peer, str(error), error.code)
            if error.reply and not self._stream.closed:
                self._stream.write(error.reply)
        except ProtocolError as error:
            log.warning(
                "Client broke the protocol; closing its connection",
                component="NETWORK",
                client=self.client.peer,
                error=str(error),
            )
        except NetworkError as error:
            log.info(
                "Connection ended in the middle of a command",
                component="NETWORK",
                client=self.client.peer,
                error=str(error),
            )
        except Exception:  # one connection's bug must not end the others
            log.exception("Unexpected error", component="NETWORK", client=self.client.peer)
        finally:
            self.idle.set()
            self.client.cut_links()
            if self._stream.transport is not None:
                self._stream.transport.close()

    def check_deadlines(self, now: float) -> None:
        """Cut the connection if its client has missed a deadline (docs/security.md#limits).

        Args:
            now: the event loop's time.
        """
        login = self.client.login
        progress = Progress(
            messages=self._messages,
            unfinished=self._stream.unfinished,
            busy=not self.idle.is_set(),
            login_since=None if login is None else login.begun_at,
            may_idle=self._has_logged_in,
        )
        missed = self._deadlines.missed(progress, now)
        if missed is not None and not self._stream.closed:
            log.info(
                "Client takes too long; closing its connection",
                component="NETWORK",
                client=self.client.peer,
                reason=missed,
            )
            self._stream.abort()

    def _note_login(self) -> None:
        """Lift the limits that apply before the login once a user has logged in."""
        if self.client.login is None or self.client.login.user is not None:
            self._has_logged_in = True
            self._stream.max_frame = MAX_MESSAGE_SIZE

    def interrupt(self) -> None:
        """Cancel the command in flight; the client gets InterruptedAtShutdown."""
        if self._task is not None:
            self._interrupted = True
            self._task.cancel()

    async def _take(self, request: Request) -> None:
        self._counters.requests += 1
        self._counters.by_kind[_KINDS.get(request.name, "command")] += 1
        if request.query is not None and not await self._legacy_allowed(request):
            return
        self._task = asyncio.current_task()
        try:
            await self._answer(request)
        except asyncio.CancelledError:
            task, self._task = self._task, None
            # The client may have disconnected at the same time, which cancels the task too.
            if not self._interrupted or task is None or task.uncancel():
                raise
            if not request.replied:
                error = interrupted(request.name)
                labelled = with_retry_labels(error, request.name, request.body())
                await self._send_error(request, labelled, request.request_id)
        finally:
            self._task, self._interrupted = None, False
        await self._stream.drain()

    async def _answer(self, request: Request) -> None:
        """Run the command and send its answer or its error."""
        response_to = request.request_id
        following: Mapping[str, Any] | None = None
        try:
            while True:
                try:
                    answer = await self._run(request, following)
                finally:
                    if self._node.peers is not None:
                        await share_with_workers(self._node)
                if isinstance(answer, PassThrough):
                    await self._pass_through(request, answer)
                    return
                if isinstance(answer, ToWorker):
                    await self._to_worker(request, answer)
                    return
                response_to = await self._send(request, answer, response_to)
                following = answer.next_command if isinstance(answer, Answer) else None
                if following is None:
                    return
                await self._stream.drain()
        except CommandError as error:
            await self._send_error(request, error, response_to)
        except NetworkError:
            raise
        except ProtocolError as error:
            refusal = CommandError(ErrorCode.ProtocolError, str(error))
            await self._send_error(request, refusal, response_to)
            raise
        except Exception as error:  # one command's bug must not end the others
            log.exception("Unexpected error", component="COMMAND", command=request.name)
            refusal = CommandError(ErrorCode.InternalError, f"unexpected error: {error!r}")
            await self._send_error(request, refusal, response_to)

    async def _run(self, request: Request, again: Mapping[str, Any] | None) -> AnyAnswer:
        """Find the command and run it, with the document ``again`` instead if that is given."""
        command = COMMANDS.get(request.name)
        if self._node.topology.quiescing and not (command and command.while_quiescing):
            raise with_retry_labels(shutting_down(request.name), request.name, request.body())
        if command is not None and command.is_ours is not None and request.query is None:
            command = command if command.is_ours(request.body()) else None
        fail_points = self._node.fail_points
        if command is not None and command.for_tests and fail_points is None:
            raise CommandError(ErrorCode.CommandNotFound, f"no such cmd: {request.name}")
        if command is None and fail_points is None:
            return PASS_THROUGH
        own = command is not None
        document = again if again is not None else await request.command(own=own)
        call = Call(
            name=request.name,
            database=request.database(dict(document)) if again is None else "admin",
            command=document,
            client=self.client,
            node=self._node,
            exhaust=request.takes_exhaust,
            on_behalf_of=_taken(document) if self.client.is_worker else None,
            raw=request.body() if again is None else None,
        )
        if command is not None:
            command.check(call)
            if "$clusterTime" in document:
                await self._check_time(document["$clusterTime"])
        if self.client.is_worker:
            fail_points = None  # they have acted in the client's worker
        if fail_points is not None:
            names = command.names if command is not None else (request.name,)
            await before_command(fail_points, call, names)
        answer = await command.run(call) if command is not None else PASS_THROUGH
        if fail_points is not None and isinstance(answer, PassThrough):
            return replace(answer, added=added_to_reply(fail_points, call))
        return answer

    async def _pass_through(self, request: Request, answer: PassThrough = PASS_THROUGH) -> None:
        """Relay the client's message to the upstream and its replies back, byte for byte.

        ``answer`` holds the fields that a fail point adds to the reply, and the refusal to send if
        the upstream does not know the command.
        """
        upstream = self._node.upstream
        if upstream is None or request.query is not None:
            login = self.client.login
            if login is not None and login.user is None and request.name in NEED_LOGIN:
                raise login_required(request.name)
            message = f"no such cmd: {request.name}"
            if request.name == "aggregate":
                message = f"{request.name} without a change stream takes an upstream mongos"
            raise CommandError(ErrorCode.CommandNotFound, message)
        if self.client.login is not None and self.client.login.by_certificate:
            raise not_for_certificates(request.name)
        link = self.client.upstream_link(upstream)
        try:
            if request.name in LOCAL_ONLY and not self.client.is_local and await link.is_local():
                raise refused(request.name)
            await link.connect()
        except CommandError as error:
            if error.code == ErrorCode.HostUnreachable:  # nothing was sent
                raise with_retry_labels(error, request.name, request.body()) from error
            raise
        self._counters.passed_through += 1
        first = True
        async with aclosing(link.relay(request.frame)) as replies:
            async for reply in replies:
                self._note_cluster_time(reply)
                if answer.refusal is not None and _code_of(reply) == ErrorCode.CommandNotFound:
                    raise answer.refusal
                await self._replies.relay(request, reply, first=first, added=answer.added)
                first = False
                await self._stream.drain()

    async def _to_worker(self, request: Request, answer: ToWorker) -> None:
        """Relay a getMore to the worker that owns the cursor, and its reply back."""
        self._counters.passed_on += 1
        link = self.client.worker_link(answer.peer)
        try:
            frame = request.frame if answer.user is None else _with_user(request, answer.user)
            async with aclosing(link.relay(frame)) as replies:
                reply = await anext(replies, None)
        except NetworkError as error:  # the worker and its cursors are gone
            log.info(
                "The cursor's worker is gone",
                component="NETWORK",
                asked=answer.peer.number,
                error=str(error),
            )
            if not answer.or_upstream:
                raise CommandError(
                    ErrorCode.CursorNotFound, f"Cursor not found (id: {answer.cursor_id})."
                ) from error
        else:
            if reply is None:  # the client asked for no reply
                return
            if not (answer.or_upstream and _code_of(reply) == ErrorCode.CursorNotFound):
                self._note_cluster_time(reply)
                await self._replies.relay(request, reply, first=True)
                return
        await self._pass_through(request)

    def _note_cluster_time(self, reply: bytes) -> None:
        element = find(reply, b"$clusterTime", BODY_OFFSET)
        if element is None:
            return
        time = reply[element.start : element.end]
        # With authorization, members may refuse a time without a valid signature.
        if self._node.access is None or is_signed(time):
            self._node.clock.advance(time)

    async def _check_time(self, value: object) -> None:
        """Check a client's time, with its signature if the client is logged in."""
        time = self._node.check_client_time(value)
        access, login = self._node.access, self.client.login
        if access is None or login is None or login.user is None:
            return
        if not access.may_advance_clock(login.user):
            await access.times.check(time.time, time.digest, time.key_id)

    async def _send(self, request: Request, answer: AnyAnswer, response_to: int) -> int:
        if isinstance(answer, RawAnswer):
            return await self._replies.send(request, answer.parts, response_to=response_to)
        assert isinstance(answer, Answer)
        return await self._replies.send_document(
            request,
            reply_document(answer.fields, self._node.times()),
            response_to=response_to,
            more_to_come=answer.next_command is not None,
        )

    async def _send_error(self, request: Request, error: CommandError, response_to: int) -> None:
        counters = self._counters
        counters.user_asserts += 1
        counters.errors[error.code] = counters.errors.get(error.code, 0) + 1
        document = error_document(error, self._node.times())
        await self._replies.send_document(request, document, response_to=response_to)

    async def _legacy_allowed(self, request: Request) -> bool:
        """Return whether servers still accept this OP_QUERY; if not, send the refusal."""
        assert request.query is not None
        if not request.query.namespace.endswith(".$cmd"):
            await self._replies.refuse_query(
                request,
                5739101,
                "OP_QUERY is no longer supported. The client driver may require an upgrade. "
                f"For more details see {_LEGACY_URL}",
            )
            return False
        if request.name not in _LEGACY_COMMANDS:
            error = CommandError(
                ErrorCode.UnsupportedOpQueryCommand,
                f"Unsupported OP_QUERY command: {request.name}. The client driver may require an "
                f"upgrade. For more details see {_LEGACY_URL}",
            )
            await self._send_error(request, error, request.request_id)
            return False
        return True


def _taken(document: Mapping[str, Any]) -> str | None:
    """Take the name of the user out of a command that another worker passes on."""
    assert isinstance(document, dict)
    name = document.pop(ON_BEHALF_OF, None)
    return name if isinstance(name, str) else None


def _with_user(request: Request, user: str) -> bytes:
    """Return the request's frame with the name of the user for whom it is passed on."""
    body = encode({**decode(request.body()), ON_BEHALF_OF: user})
    return build_msg(body, request_id=request.request_id, flags=request.flags & MORE_TO_COME)


def _code_of(reply: bytes) -> int | None:
    """Return the error code of a reply's frame, None if it has none."""
    element = find(reply, b"code", BODY_OFFSET)
    if element is None:
        return None
    return int.from_bytes(reply[element.start : element.end], "little")
