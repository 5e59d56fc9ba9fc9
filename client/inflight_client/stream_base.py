"""What both streams tell of their answer while it comes."""

from __future__ import annotations

from inflight_client._compat.answer import AnswerDecoder
from inflight_client.call import Call
from inflight_client.results import Generation
from inflight_client.transcript import Transcript


class StreamBase:
    """The state that a stream of ordinary code and one of asyncio have in common."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._transcript = Transcript(call.request_id)
        self._answer: AnswerDecoder | None = None

    @property
    def request_id(self) -> str:
        """What the client's `cancel` knows the request by."""
        return self._call.request_id

    @property
    def text(self) -> str:
        """The text so far."""
        return self._transcript.text

    @property
    def generation(self) -> Generation | None:
        """The whole answer, once its last delta has come."""
        if self._answer is None:
            return None
        return self._transcript.generation(self._answer.cumulative_log_prob, self._answer.server_timings)
