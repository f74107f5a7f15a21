"""rotateCertificates: exchange the router's certificates without a restart."""

from router.commands.answer import PASS_THROUGH, Answer, AnyAnswer
from router.commands.call import Call, Command
from router.commands.elsewhere import change_everywhere_else
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError


async def rotate_certificates(call: Call) -> AnyAnswer:
    """Read the certificates of all processes again; without TLS, pass through to the upstream.

    Raises:
        CommandError: a file is unusable; the former certificates stay in use.
    """
    if call.node.certificates is None:
        return PASS_THROUGH
    try:
        call.node.certificates.rotate()
    except (ValueError, OSError) as error:
        raise CommandError(ErrorCode.InvalidSSLConfiguration, str(error)) from error
    await change_everywhere_else(call)
    return Answer({})


COMMANDS = (
    Command(
        ("rotateCertificates",),
        rotate_certificates,
        "exchange the certificates",
        admin_only=True,
        action="rotateCertificates",
    ),
)
