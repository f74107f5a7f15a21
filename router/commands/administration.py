"""Commands that change the router's processes: their end, certificates and users.

Such commands are not relayed from a remote client to an upstream on this machine. A mongos trusts
clients that connect from its own machine: they can end the process and, while the cluster has no
users, create the first one. An upstream that the router reaches over a loopback address treats
every client of the router as such a client, so the router has to distinguish them
(docs/protocol.md#authentication).
"""

from typing import Final

from router.commands.call import Call
from router.commands.command import answers
from router.commands.other_workers import change_all_processes
from router.commands.reply_bodies import PASS_THROUGH, Answer, AnyAnswer
from router.commands.serving_process import ServingProcess
from router.peers.messages import WorkerSignal
from shard_client.errors import CommandError, ErrorCode

# The localhost exception, which applies while authentication is on and there are no users.
_EXCEPTION = frozenset({"addShard", "addshard", "createRole", "createUser", "grantRolesToUser"})

# Commands that change the process that runs them, or servers as a whole.
_PROCESS = frozenset(
    {
        "_killOperations", "connPoolSync", "dropConnections", "flushRouterConfig", "fsync",
        "fsyncUnlock", "invalidateUserCache", "logRotate", "profile", "rotateCertificates",
        "setParameter", "setProfilingFilterGlobally", "startRecordingTraffic",
        "stopRecordingTraffic",
    }
)  # fmt: skip

LOCAL_ONLY = _EXCEPTION | _PROCESS
"""Names of the commands refused to remote clients while the upstream is local."""


def refused(name: str) -> CommandError:
    """Return the error for a refused command of LOCAL_ONLY."""
    return CommandError(
        ErrorCode.Unauthorized,
        f"{name} must run from localhost: the router reaches the upstream mongos over a loopback "
        "address, and the mongos could not tell this client from a local one. Connect to the "
        "mongos itself, or name it to the router by an address that is not loopback.",
    )


@answers("shutdown", help="refused: send SIGTERM instead", admin_only=True, action="shutdown")
async def shutdown(call: Call) -> AnyAnswer:
    """Refuse shutdown: if relayed, it would end the upstream but not the router.

    Raises CommandError: always; with mongos's message for a remote client.
    """
    if not call.client.is_local:
        raise CommandError(
            ErrorCode.Unauthorized, "shutdown must run from localhost when running db without auth"
        )
    raise CommandError(
        ErrorCode.IllegalOperation,
        "the router does not end by command: send SIGTERM to its process; connect to the upstream "
        "mongos to end that one",
    )


@answers(
    "rotateCertificates",
    help="exchange the certificates",
    admin_only=True,
    action="rotateCertificates",
)
async def rotate_certificates(call: Call) -> AnyAnswer:
    """Read the certificates of all processes again; without TLS, pass through to the upstream.

    Raises CommandError: a file is unusable; the former certificates stay in use.
    """
    if call.process.certificates is None:
        return PASS_THROUGH
    problem = call.process.certificates.rotate()
    if problem is not None:
        raise CommandError(ErrorCode.InvalidSSLConfiguration, problem)
    await change_all_processes(call, WorkerSignal.ROTATE_CERTIFICATES)
    return Answer({})


_INVALIDATE: Final = "invalidateUserCache"

CHANGES_USERS: Final = frozenset(
    {
        _INVALIDATE, "createRole", "createUser", "dropAllRolesFromDatabase",
        "dropAllUsersFromDatabase", "dropRole", "dropUser", "grantPrivilegesToRole",
        "grantRolesToRole", "grantRolesToUser", "revokePrivilegesFromRole", "revokeRolesFromRole",
        "revokeRolesFromUser", "updateRole", "updateUser",
    }
)  # fmt: skip
"""The commands after which mongos forgets what it knows of users."""


async def reread_users(process: ServingProcess) -> None:
    """Read the users again, here and in the other workers."""
    if process.access is not None:
        await process.access.users.invalidate()
        if process.peers is not None:
            await process.peers.ask_all("admin", {_INVALIDATE: 1})


@answers(_INVALIDATE, help="read users and roles again", admin_only=True, action=_INVALIDATE)
async def invalidate_user_cache(call: Call) -> AnyAnswer:
    """Read the users again; with an upstream, it gets the command too."""
    if call.upstream is not None:
        return PASS_THROUGH  # the users are read again when its reply arrives
    if call.client.is_worker and call.process.access is not None:
        await call.process.access.users.invalidate()
    else:
        await reread_users(call.process)
    return Answer({})
