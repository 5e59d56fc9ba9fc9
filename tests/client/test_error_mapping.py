"""Servers' messages are mapped to stable codes, however they are wrapped."""

from __future__ import annotations

import pytest
from inflight_client.error_mapping import code_from_message, error_from_message


@pytest.mark.parametrize(
    ("message", "code", "sentence"),
    [
        (
            "in ensemble 'ensemble', text_input is empty; send at least one character [empty_prompt]",
            "empty_prompt",
            "text_input is empty; send at least one character",
        ),
        (
            "[request id: 7f] in ensemble 'demo_ensemble', the engine's process died (signal 9) [engine_died]",
            "engine_died",
            "the engine's process died (signal 9)",
        ),
        ("max_tokens is 0 [of_no_table]", "invalid_request", "max_tokens is 0 [of_no_table]"),
        (
            "[request id: <id_unknown>] Exceeds maximum queue size",
            "overloaded",
            "Exceeds maximum queue size",
        ),
        ("in ensemble 'ensemble', Request timeout expired", "deadline_exceeded", "Request timeout expired"),
        (
            "[request id: 7f] Failed to process the request(s) for model instance 'my_model_0_0', message: ValueError:"
            " wrong\n\nAt:\n  /models/my_model/1/model.py(58): execute\n",
            "model_failed",
            "the model 'my_model' failed on the request; the server's log says why",
        ),
    ],
)
def test_a_sentence_keeps_its_words_and_loses_its_wrapping(message: str, code: str, sentence: str) -> None:
    error = error_from_message(message)
    assert (error.code, str(error)) == (code, sentence)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Request for unknown model: 'nobody' is not found", "model_not_found"),
        ("Request for unknown model: 'ensemble' version 3 is not found", "model_not_found"),
        ("'ensemble' version 3 is not found", "model_not_found"),
        ("Request for unknown model: 'ensemble' has no available versions", "model_not_ready"),
        ("'ensemble' version 1 is not at ready state", "model_not_ready"),
        ("Stub process 'tensorrt_llm_0_0' is not healthy.", "model_not_ready"),
        (
            "Failed to process the request(s) for model instance 'a_0_0', message: Stub process 'a' is not healthy.",
            "model_not_ready",
        ),
        (
            "Server is stopping, scheduler for model has stopped accepting new inference requests",
            "model_not_ready",
        ),
        ("GRPC server is shutting down and has stopped accepting new requests.", "model_not_ready"),
        ("Server exiting", "model_not_ready"),
        ("Max queue size reached", "overloaded"),
        ("This protocol is restricted, expecting header 'triton-grpc-protocol-key'", "permission_denied"),
        ("This API is restricted, expecting header 'key'", "permission_denied"),
        ("inference input 'max_tokens' has the wrong shape", None),
        ("UNAVAILABLE:GOAWAY received", None),
        ("", None),
    ],
)
def test_tritons_own_words_have_codes(words: str, code: str | None) -> None:
    assert code_from_message(words) == code
    assert error_from_message(words, otherwise="server_gone").code == (code or "server_gone")


def test_only_what_may_pass_is_worth_another_try() -> None:
    assert error_from_message("gone [engine_died]").retry
    assert not error_from_message("too long [prompt_too_long]").retry
