"""The merge of sorted runs behind a gate (docs/design.md, section 5)."""


class MergeOrderError(Exception):
    """A remote broke its promise: a batch out of order, or a promise that went backwards."""

    def __init__(self, remote: int, message: str) -> None:
        super().__init__(f"remote {remote}: {message}")
        self.remote = remote
