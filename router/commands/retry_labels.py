"""Error labels of a command that the router did not pass on, or that its shutdown interrupted.

For an application the router takes the place of the mongos. A driver treats an unreachable mongos
as a network error and retries writes and transactions. It adds the labels to its own network errors
itself; from the router it takes them from the reply, as from a mongos that shuts down. Source: the
drivers' specifications of retryable writes and of transactions.
"""

from itertools import islice

from shard_client.bson.values import BOOLEAN
from shard_client.errors import CommandError
from shard_client.wire.bson_slices import iter_elements

_ENDS_TRANSACTION = frozenset({"abortTransaction", "commitTransaction"})
_MOST_FIELDS = 1000


def with_retry_labels(error: CommandError, name: str, body: bytes) -> CommandError:
    """Return ``error`` with the labels that make a driver retry.

    Args:
        error: the reason why the command was not sent, or not finished.
        name: the command's name.
        body: the raw command, of which only the first thousand fields are inspected. Raises
            ProtocolError if these are malformed.
    """
    in_transaction = has_number = False
    for element in islice(iter_elements(body), _MOST_FIELDS):
        if element.name == b"txnNumber":
            has_number = True
        elif element.name == b"autocommit" and element.type == BOOLEAN:
            in_transaction = not body[element.start]
    if name in _ENDS_TRANSACTION or (has_number and not in_transaction):
        return error.with_labels("RetryableWriteError")
    if in_transaction:
        return error.with_labels("TransientTransactionError")
    return error.with_labels()
