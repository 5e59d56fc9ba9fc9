"""The refusal of a request, from the text that it brings to the engine that would answer it."""


class RequestError(Exception):
    """A request that can't be served: one sentence and a stable code of the client's error table."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
