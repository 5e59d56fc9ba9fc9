"""The checks of the rows of batches, which are no requests to the gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inflight_client import AsyncClient, InflightError
from inflight_client.results import Generation

from inflight.batch.job.rows import Completion, GenerateRequest, RowAnswer
from inflight.gateway.checks.checks import Checks
from inflight.gateway.checks.gate import checked_choice
from inflight.gateway.metrics import GatewayMetrics
from inflight.gateway.outcome import Outcome
from inflight.gateway.routes_file import Routes
from inflight.openai_api.errors import ApiError


class RowChecks:
    """`routes` is the file with the checks, `model` the one that rows name, `classifiers` the servers of classifiers by
    the names of their models."""

    def __init__(self, routes: Path, model: str, classifiers: Mapping[str, Sequence[str]]) -> None:
        """Raises InflightError."""
        self._model, self._classifiers = model, classifiers
        self._clients: dict[str, AsyncClient] = {}
        counter = GatewayMetrics(lambda: True).checks
        self._checks = Checks(Routes(routes).checks, counter, self._client)

    def _client(self, model: str) -> AsyncClient:
        if not self._classifiers.get(model):
            raise InflightError(f"no server has the classifier {model}", "model_not_ready")
        address = self._classifiers[model][0].partition(",metrics=")[0]
        return self._clients.setdefault(address, AsyncClient(address))

    async def request(self, row: GenerateRequest, outcome: Outcome) -> GenerateRequest:
        """Return a row as checks leave it. Raises InflightError for one that is blocked, or gets no verdict."""
        name = "prompt" if isinstance(row.prompt, str) else "messages"
        kwargs = row.options.get("chat_template_kwargs")
        sent = {name: row.prompt, "tools": list(row.tools.functions), "chat_template_kwargs": kwargs}
        try:
            left = await self._checks.before(sent, self._model, outcome)
        except ApiError as error:
            raise InflightError(str(error), error.code) from None
        if left is sent:
            return row
        options = row.options.copy()
        if kwargs is not None:
            options["chat_template_kwargs"] = left["chat_template_kwargs"]
        tools = replace(row.tools, functions=tuple(left["tools"]))
        return replace(row, prompt=left[name], tools=tools, options=options, body=None)

    async def answer(
        self, row: GenerateRequest, answer: RowAnswer | InflightError, outcome: Outcome
    ) -> RowAnswer | InflightError:
        """Return an answer as checks leave it."""
        in_json = row.sampling.guide is not None and row.sampling.guide.type.startswith("json")
        if self._checks.gate(self._model, outcome) is None or not isinstance(answer, Generation | Completion):
            return answer

        async def checked(choice: Mapping[str, Any]) -> Mapping[str, Any]:
            gate = self._checks.gate(self._model, outcome, in_json)
            return choice if gate is None else await checked_choice(choice, gate)

        if isinstance(answer, Completion):
            return replace(answer, choices=tuple([await checked(each) for each in answer.choices]))
        left = await checked({"text": answer.text, "finish_reason": answer.finish_reason, "logprobs": True})
        if not left["logprobs"]:
            answer = replace(answer, token_ids=None, log_probs=None, cumulative_log_prob=None)
        return replace(answer, text=left["text"], finish_reason=left["finish_reason"])
