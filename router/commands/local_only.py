"""Commands that a remote client may not have passed on to an upstream on this machine.

A mongos trusts clients that connect from its own machine: it lets them end the process and, while
the cluster has no users, create the first one. An upstream that the router reaches over a loopback
address takes every client of the router for such a client, so that the router has to tell them
apart (docs/protocol.md, section 8).
"""

from router.commands.answer import AnyAnswer
from router.commands.call import Call, Command
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

# The localhost exception, while authentication is on and there are no users.
_EXCEPTION = frozenset({"addShard", "addshard", "createRole", "createUser", "grantRolesToUser"})

# What changes the process that runs it, or servers as a whole: meant for the server connected to.
_PROCESS = frozenset(
    {
        "_killOperations", "connPoolSync", "dropConnections", "flushRouterConfig", "fsync",
        "fsyncUnlock", "invalidateUserCache", "logRotate", "profile", "rotateCertificates",
        "setParameter", "setProfilingFilterGlobally", "startRecordingTraffic",
        "stopRecordingTraffic",
    }
)  # fmt: skip

LOCAL_ONLY = _EXCEPTION | _PROCESS
"""Names of the commands that remote clients get refused, while the upstream is local."""


def refused(name: str) -> CommandError:
    """Return the refusal of a command of LOCAL_ONLY."""
    return CommandError(
        ErrorCode.Unauthorized,
        f"{name} must run from localhost: the router reaches the upstream mongos over a loopback "
        "address, and the mongos could not tell this client from a local one. Connect to the "
        "mongos itself, or name it to the router by an address that is not loopback.",
    )


async def shutdown(call: Call) -> AnyAnswer:
    """Refuse: passed on, it would end the upstream and leave the router.

    Raises:
        CommandError: always; to a remote client in mongos's words.
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


COMMANDS = (Command(("shutdown",), shutdown, "refused: send SIGTERM instead", admin_only=True),)
