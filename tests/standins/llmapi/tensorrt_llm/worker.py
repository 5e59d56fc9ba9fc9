"""A stand-in for the processes of NVIDIA's tensorrt_llm: it takes requests and answers all of them step by step.

The answer is the prompt's tokens over and over, and beam number n begins with its token n. An adapter adds its number
to each; a seed draws them instead, a guide is answered with its own bytes, and a bias with the token that it favours
most. Wishes: `step_seconds`, `max_batch_size`, and tokens by which a prompt that begins with them is cut after two
tokens: `fail_token` by an error, `garble_token` by an unheard-of end, `die_token` by the end of the process (SIGKILL).
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

LOG_PROB = -0.5


class RunningAnswer:
    def __init__(self, request_id: int, prompt: list[int], params: dict[str, Any], adapter: int) -> None:
        self.id, self.prompt, self.params, self.adapter = request_id, prompt, params, adapter
        self.random = random.Random(params["seed"])
        self.made: list[list[int]] = [[] for _ in range(params["beams"])]
        self.reasons: list[str | None] = [None] * params["beams"]

    def token(self, beam: int) -> int:
        made, params = self.made[beam], self.params
        token = (self.prompt[(len(made) + beam) % len(self.prompt)]) + self.adapter
        if params["seed"] is not None:
            token = self.random.choice(self.prompt)
        if params["guide"] is not None:
            token = [*params["guide"].encode(), params["end_ids"][0]][len(made)]
        if params["bias"] is not None:
            token = max(range(len(params["bias"])), key=params["bias"].__getitem__)
        while any(word == [*made, token][-len(word) :] for word in params["bad_words"]):
            token += 1
        return token

    def step(self, beam: int) -> list[int]:
        """The next token of a sequence, which may be its end."""
        if self.reasons[beam] is not None:
            return []
        token = self.token(beam)
        made = self.made[beam]
        made.append(token)
        if token in self.params["end_ids"] + self.params["stop_ids"] and len(made) > self.params["min_tokens"]:
            self.reasons[beam] = "stop"
        elif len(made) == self.params["max_tokens"]:
            self.reasons[beam] = "length"
        return [token]

    def response(self, tops: bool) -> dict[str, Any] | None:
        new = [self.step(beam) for beam in range(len(self.made))]
        final = all(self.reasons)
        if len(self.made) > 1:
            if not final:
                return None
            new = self.made
        outputs = [self.output(beam, tokens, tops) for beam, tokens in enumerate(new)]
        return {"id": self.id, "final": final, "error": None, "outputs": outputs}

    def output(self, beam: int, tokens: list[int], tops: bool) -> dict[str, Any]:
        log_prob = LOG_PROB * (beam + 1)
        told: list[Any] = [{token: log_prob} for token in tokens] if tops else [log_prob for _ in tokens]
        cumulative = log_prob * len(self.made[beam])
        return {
            "token_ids": tokens,
            "logprobs": told,
            "cumulative_logprob": cumulative,
            "finish_reason": self.reasons[beam],
        }

    def last(self, reason: str, error: str | None = None) -> dict[str, Any]:
        self.reasons = [reason for _ in self.reasons]
        outputs = [self.output(beam, [], tops=False) for beam in range(len(self.made))]
        return {"id": self.id, "final": True, "error": error, "outputs": outputs}


def serve(connection: Connection) -> None:
    wishes = connection.recv()
    answers: dict[int, RunningAnswer] = {}
    while True:
        told = []
        while connection.poll(0 if answers else None):
            command, argument = connection.recv()
            if command == "submit":
                answers[argument[0]] = RunningAnswer(*argument)
            elif argument in answers:
                told.append(answers.pop(argument).last("cancelled"))
        time.sleep(wishes.get("step_seconds", 0.002))
        for answer in list(answers.values())[: wishes["max_batch_size"]]:
            response = step(answer, wishes)
            if response is not None:
                told.append(response)
                if response["final"]:
                    del answers[answer.id]
        connection.send(told)


def step(answer: RunningAnswer, wishes: dict[str, Any]) -> dict[str, Any] | None:
    if len(answer.made[0]) == 2:
        if answer.prompt[0] == wishes.get("die_token"):
            os.kill(os.getpid(), signal.SIGKILL)
        if answer.prompt[0] == wishes.get("fail_token"):
            return answer.last("cancelled", error="the stand-in failed because it was asked to")
        if answer.prompt[0] == wishes.get("garble_token"):
            return answer.last("garbled")
    return answer.response(wishes["tops"])


if __name__ == "__main__":
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        pass
