"""One client's connection: answers its requests, or passes them on, in the order of arrival."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

import structlog

from router.access.authorization import login_required, not_for_certificates
from router.catalog.catalog_primary import CatalogPrimary
from router.commands.administration import CHANGES_USERS, LOCAL_ONLY, refused, reread_users
from router.commands.call import Call
from router.commands.client import Client
from router.commands.command import COMMANDS, Command, counted_name
from router.commands.other_workers import kill_unread, take_user
from router.commands.reply_bodies import (
    PASS_THROUGH,
    Answer,
    AnyAnswer,
    PassThrough,
    RawAnswer,
    at_shutdown,
    code_of,
    error_document,
    reply_document,
    with_retry_labels,
)
from router.commands.serving_process import ServingProcess
from router.server.client_deadlines import ClientDeadlines
from router.server.client_message import ClientMessage, off_loop
from router.server.incoming import Incoming, PortShares
from router.tls.handshake import ForeignProtocolError, log_refused_client
from router.upstream.server_link import LoginLostError
from shard_client.errors import CommandError, ErrorCode, NetworkError, ProtocolError
from shard_client.wire.compression import NEVER_COMPRESSED
from shard_client.wire.documents import encode
from shard_client.wire.frame_protocol import FrameStream
from shard_client.wire.frames import (
    EXHAUST_ALLOWED,
    MORE_TO_COME,
    build_op_reply,
    compress_frame,
    msg_header,
    with_ids,
)

log = structlog.get_logger(component="NETWORK")

_QUERY_FAILURE = 0b0010
"""The flag of an OP_REPLY that answers what is not a command."""
_CHANGE_LOGINS = {"hello", "isMaster", "ismaster", "saslStart", "saslContinue", "logout"}
"""Commands that change the login that the link to the upstream holds. Where that breaks meanwhile,
the login is lost, and the client's connection ends."""
_LEGACY_URL = "https://dochub.mongodb.org/core/legacy-opcode-removal"
_LEGACY_COMMANDS = frozenset({"hello", "isMaster", "ismaster", "buildInfo", "buildinfo"})
_OF_COMMANDS = ".$cmd"
"""The end of the namespace of an OP_QUERY that is a command."""

_ids = count(1)


def _new_id() -> int:
    return next(_ids) & 0x7FFFFFFF


class ClientConnection:
    """Reads a client's requests one at a time, runs them and writes the replies.

    Pipelined requests wait in the socket. When the client disconnects, its running command is
    cancelled and its upstream connection is cut (docs/clients.md).

    ``idle`` is set while no command is in flight.
    """

    def __init__(
        self, stream: FrameStream, process: ServingProcess, client: Client, shared: PortShares
    ) -> None:
        self.client = client
        self._stream = stream
        self._process = process
        self._counters = shared.counters
        self._incoming = Incoming(stream, client, shared)
        self.idle = self._incoming.idle
        self._deadlines = ClientDeadlines(shared.limits, asyncio.get_running_loop().time())
        self._task: asyncio.Task[None] | None = None
        self._call: Call | None = None
        """The command in flight, until the client has got its reply."""
        self._interrupted = False

    async def serve(self) -> None:
        """Answer until the client disconnects or breaks the protocol, then release everything."""
        try:
            while (request := await self._incoming.next()) is not None:
                await self._take(request)
                del request
                self._incoming.note_login()
                self._incoming.release()
        except ForeignProtocolError as error:
            log_refused_client(self.client.peer, str(error), error.code)
            if error.reply and not self._stream.closed:
                self._stream.write(error.reply)
        except ProtocolError as error:
            log.warning(
                "Client broke the protocol; closing its connection",
                client=self.client.peer,
                error=str(error),
            )
        except NetworkError as error:
            log.info(
                "Connection ended in the middle of a command",
                client=self.client.peer,
                error=str(error),
            )
        except Exception:  # one connection's bug must not end the others
            log.exception("Unexpected error", client=self.client.peer)
        finally:
            self._incoming.release()
            self.client.cut_links()
            if self._stream.transport is not None:
                self._stream.transport.close()
            await kill_unread(self._call)

    def check_deadlines(self, now: float) -> None:
        """Cut the connection if its client has missed a deadline by ``now``, the loop's time
        (docs/security.md#limits)."""
        login = self.client.login
        begun_at = None if login is None else login.begun_at
        missed = self._deadlines.missed(
            now, self._incoming, unsent=self._stream.unsent, login_since=begun_at
        )
        if missed is not None and not self._stream.closed:
            log.info(
                "Client takes too long; closing its connection",
                client=self.client.peer,
                reason=missed,
            )
            self._stream.abort()

    def interrupt(self) -> None:
        """Cancel the command in flight; the client gets InterruptedAtShutdown."""
        if self._task is not None:
            self._interrupted = True
            self._task.cancel()

    async def _take(self, request: ClientMessage) -> None:
        self._counters.requests += 1
        self._counters.runs[counted_name(request.name)] += 1
        if request.query is not None and not request.query.namespace.endswith(_OF_COMMANDS):
            await self._write(request, _query_failure(request, _new_id()))
            return
        self._task = asyncio.current_task()
        try:
            await self._answer(request)
        except asyncio.CancelledError:
            # The client may have disconnected at the same time, which cancels the task too.
            if not self._interrupted or self._task is None or self._task.uncancel():
                raise
            self._task = None
            if not request.replied:
                code = ErrorCode.InterruptedAtShutdown
                error = at_shutdown(code, request.name, request.body())
                await self._send_error(request, error, request.request_id)
        finally:
            self._task, self._interrupted = None, False
        await self._stream.drain()
        self._call = None

    async def _answer(self, request: ClientMessage) -> None:
        """Run the command and send its answer or its error."""
        response_to = request.request_id
        following: Mapping[str, Any] | None = None
        try:
            while True:
                answer = await self._run(request, following)
                if isinstance(answer, PassThrough):
                    await self._pass_through(request, answer)
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

    def _route(self, request: ClientMessage) -> Command | None:
        """Return the command that the router answers itself; None for one that it passes on.

        Raises CommandError before the command is decoded: servers no longer accept it in an
        OP_QUERY, or the router shuts down. Raises as ``Command.is_ours`` does.
        """
        command = COMMANDS.get(request.name)
        if request.query is not None and request.name not in _LEGACY_COMMANDS:
            raise CommandError(
                ErrorCode.UnsupportedOpQueryCommand,
                f"Unsupported OP_QUERY command: {request.name}. The client driver may require an "
                f"upgrade. For more details see {_LEGACY_URL}",
            )
        if self._process.server.topology.quiescing and not (command and command.while_quiescing):
            raise at_shutdown(ErrorCode.ShutdownInProgress, request.name, request.body())
        if command is None or command.is_ours is None or request.query is not None:
            return command
        return command if command.is_ours(request.body(), self.client.user) else None

    async def _run(self, request: ClientMessage, again: Mapping[str, Any] | None) -> AnyAnswer:
        """Run the command, with the document ``again`` instead if that is given."""
        command, fail_points = self._route(request), self._process.fail_points
        if command is None and fail_points is None:
            return PASS_THROUGH
        long_turn = self._incoming.long_turn
        document = (
            again if again is not None else await request.command(long_turn, passes=command is None)
        )
        self._call = call = Call(
            name=request.name,
            database=request.database(dict(document)) if again is None else "admin",
            command=document,
            client=self.client,
            process=self._process,
            exhaust=bool(request.flags & EXHAUST_ALLOWED),
            on_behalf_of=take_user(document) if self.client.is_worker else None,
            raw=request.body() if again is None else None,
        )
        if command is not None:
            await command.check(call)
        if fail_points is not None:
            await fail_points.before(call, command.names if command else (request.name,))
        try:
            return await command.run(call) if command is not None else PASS_THROUGH
        except NetworkError as error:  # of a server; the client's connection is well
            if request.name in _CHANGE_LOGINS or isinstance(error, LoginLostError):
                raise
            raise CommandError(ErrorCode.HostUnreachable, str(error)) from error

    async def _pass_through(self, request: ClientMessage, answer: PassThrough) -> None:
        """Relay the client's message to the upstream and its replies back, byte for byte.

        ``answer`` holds the refusal to send if the upstream does not know the command.
        """
        upstream = self._process.upstream
        if upstream is None or request.query is not None:
            raise self._unknown(request.name)
        if self.client.login is not None and self.client.login.by_certificate:
            raise not_for_certificates(request.name)
        link = self.client.link_to(upstream)
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
                self._process.advance_clock(reply)
                if isinstance(upstream, CatalogPrimary):
                    upstream.note_reply(link.address, code_of(reply))
                    reply = upstream.as_mongos(request.body(), reply)
                if request.name in CHANGES_USERS:
                    await reread_users(self._process)
                if answer.refusal is not None and code_of(reply) == ErrorCode.CommandNotFound:
                    raise answer.refusal
                await self._write(request, _relayed_frame(request, reply) if first else reply)
                first = False
                await self._stream.drain()

    def _unknown(self, name: str) -> CommandError:
        """Return the error for a command that neither the router nor an upstream answers."""
        login = self.client.login
        if login is not None and login.user is None:
            return login_required(name)
        message = f"no such cmd: {name}"
        if name == "aggregate":
            message = f"{name} without a change stream requires an upstream mongos"
        return CommandError(ErrorCode.CommandNotFound, message)

    async def _send(self, request: ClientMessage, answer: AnyAnswer, response_to: int) -> int:
        """Send an answer, if the client waits for one; return its id. Raises NetworkError."""
        more = False
        if isinstance(answer, Answer):
            more = answer.next_command is not None
            answer = [encode(reply_document(answer.fields, self._process.times()))]
        assert isinstance(answer, list)
        reply_id = _new_id()
        if request.wants_reply:
            frame = _reply_frame(
                request, answer, reply_id=reply_id, response_to=response_to, more=more
            )
            await self._write(request, frame)
        return reply_id

    async def _write(self, request: ClientMessage, frame: bytes) -> None:
        """Write a frame, compressed as the request was: a large one off the loop."""
        if request.compressor is not None and request.name not in NEVER_COMPRESSED:
            frame = await off_loop(len(frame), compress_frame, frame, request.compressor)
        request.replied = True
        self._counters.bytes_out += len(frame)
        self._stream.write(frame)

    async def _send_error(
        self, request: ClientMessage, error: CommandError, response_to: int
    ) -> None:
        counters = self._counters
        counters.user_asserts += 1
        counters.failures[counted_name(request.name)] += 1
        counters.errors[error.code] = counters.errors.get(error.code, 0) + 1
        document = encode(error_document(error, self._process.times()))
        await self._send(request, RawAnswer([document]), response_to)


def _reply_frame(
    request: ClientMessage, parts: Sequence[bytes], *, reply_id: int, response_to: int, more: bool
) -> bytes:
    """Return the frame of a reply, of the kind of its request, with the ``parts`` of its body.

    ``response_to`` is the id of the message that it responds to; ``more`` is whether another reply
    follows without a request.
    """
    if request.query is not None:
        return build_op_reply(b"".join(parts), request_id=reply_id, response_to=response_to)
    size = int.from_bytes(parts[0][:4], "little")  # the length that the body begins with
    flags = MORE_TO_COME if more else 0
    return b"".join((msg_header(size, reply_id, response_to, flags), *parts))


def _relayed_frame(request: ClientMessage, reply: bytes) -> bytes:
    """Return another server's reply to a client's request, with the id that it responds to."""
    own_id = int.from_bytes(reply[4:8], "little", signed=True)
    return b"".join(with_ids(reply, request_id=own_id, response_to=request.request_id))


def _query_failure(request: ClientMessage, reply_id: int) -> bytes:
    """Return the frame that refuses an OP_QUERY that is not a command."""
    message = (
        "OP_QUERY is no longer supported. The client driver may require an upgrade. "
        f"For more details see {_LEGACY_URL}"
    )
    document = encode({"$err": message, "code": 5739101, "ok": 0.0})
    return build_op_reply(
        document, request_id=reply_id, response_to=request.request_id, flags=_QUERY_FAILURE
    )
