"""Commands that the router does not relay from a remote client to an upstream on this machine.

A mongos trusts clients that connect from its own machine: they can end the process and, while the
cluster has no users, create the first one. An upstream that the router reaches over a loopback
address treats every client of the router as such a client, so the router has to distinguish them
(docs/protocol.md#authentication).
"""

from router.commands.answer import AnyAnswer
from router.commands.call import Call, Command
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

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


async def shutdown(call: Call) -> AnyAnswer:
    """Refuse shutdown: if relayed, it would end the upstream but not the router.

    Raises:
        CommandError: always; with mongos's message for a remote client.
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


COMMANDS = (
    Command(
        ("shutdown",), shutdown, "refused: send SIGTERM instead", admin_only=True, action="shutdown"
    ),
)
