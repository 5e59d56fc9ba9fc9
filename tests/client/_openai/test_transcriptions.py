"""Answers of a gateway's routes of audio; tests/gateway/test_audio.py has the real gateway."""

from __future__ import annotations

import json

import numpy as np
from inflight_client._openai.transcriptions import TranscriptionHttpRequest
from inflight_client.audio.clip_call import ClipOptions, ClipRequest
from inflight_client.audio.cut import Block


def test_each_word_is_in_a_segment_though_it_begins_outside_of_all() -> None:
    options = ClipOptions("whisper", language="en", word_timestamps=True, openai=True)
    clip = ClipRequest(options, Block(0, 0.0, 9.0, np.zeros(9, np.float32)))
    segments = [{"start": 1, "end": 2, "text": " a b c"}, {"start": 4, "end": 5, "text": " d e"}]
    begins = {" a": 0.5, " b": 1.5, " c": 2.5, " d": 4, " e": 6}
    words = [{"word": word, "start": start, "end": start + 0.5} for word, start in begins.items()]
    document = {"text": "a b c d e", "language": "english", "segments": segments, "words": words}
    response = TranscriptionHttpRequest(clip.build()).parse_event(json.dumps(document).encode())
    assert response is not None
    clip.add(response)
    assert [[word.word for word in segment.words] for segment in clip.result.segments] == [
        [" a", " b", " c"],
        [" d", " e"],
    ]
