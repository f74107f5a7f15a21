"""Error labels of a command that was not sent, as the upstream cannot be reached.

To an application the router stands for the mongos: that this one cannot be reached is what a driver
calls a network error, on which it retries writes and transactions. A driver adds the labels to
network errors of its own, and takes them from the answer here. Source: the drivers' specifications
of retryable writes and of transactions.
"""

from itertools import islice

from shard_client.errors import CommandError
from shard_client.wire.bson_slices import BOOLEAN, iter_elements

_ENDS_TRANSACTION = frozenset({"abortTransaction", "commitTransaction"})
_MOST_FIELDS = 1000


def labelled_unsent(error: CommandError, name: str, body: bytes) -> CommandError:
    """Return ``error`` with the labels that make a driver try again.

    Args:
        error: why the command was not sent.
        name: the command's.
        body: the raw command; of its fields the first thousand are looked at. Raises ProtocolError
            if these are malformed.
    """
    in_transaction = has_number = False
    for element in islice(iter_elements(body), _MOST_FIELDS):
        if element.name == b"txnNumber":
            has_number = True
        elif element.name == b"autocommit" and element.type == BOOLEAN:
            in_transaction = not body[element.start]
    labels = set(error.labels)
    if name in _ENDS_TRANSACTION or (has_number and not in_transaction):
        labels.add("RetryableWriteError")
    elif in_transaction:
        labels.add("TransientTransactionError")
    return CommandError(
        error.code, error.message, code_name=error.code_name, labels=labels, extra=error.extra
    )
