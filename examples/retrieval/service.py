"""A service that answers questions from the passages of a table, and names its sources.

    python service.py --database 'postgresql://app:${PGPASSWORD}@127.0.0.1/shop' --table docs --port 8090
    curl 127.0.0.1:8090/answer -d '{"question": "Do green and black teas come from different plants?"}'

POST /answer takes {"question": ...} and returns {"answer": ..., "sources": [{"id", "text", "score"}, ...]}. The server
at --server has the model `embedding`, the model that answers, and `rerank` for --rerank. It batches the questions that
come at the same time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import jinja2
import uvicorn
from inflight_client import AsyncClient, InflightError
from sqlalchemy.exc import SQLAlchemyError

from inflight.batch.errors import BatchError
from inflight.batch.storage.database_engine import create_database_engine
from inflight.retrieval.retriever import Retriever
from inflight.retrieval.table import PassageTable

PROMPT = Path(__file__).with_name("prompt.txt")
MAX_BODY_BYTES = 65_536
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]


class Service:
    """An application of ASGI (https://asgi.readthedocs.io)."""

    def __init__(self, client: AsyncClient, retriever: Retriever, chat: bool, max_tokens: int) -> None:
        self._client, self._retriever, self._chat, self._max_tokens = client, retriever, chat, max_tokens
        self._template = jinja2.Template(PROMPT.read_text(encoding="utf-8"), undefined=jinja2.StrictUndefined)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if (scope["method"], scope["path"]) != ("POST", "/answer"):
            await respond(send, 404, {"error": "send a question to POST /answer"})
            return
        question = question_of(await read_body(receive))
        if question is None:
            await respond(send, 400, {"error": 'the body must be JSON: {"question": "a text"}'})
            return
        try:
            await respond(send, 200, await self.answer(question))
        except InflightError as error:
            await respond(send, 503 if error.retry else 400, {"error": str(error), "code": error.code})
        except SQLAlchemyError:  # its words may contain addresses
            await respond(send, 503, {"error": "the database of the passages does not answer"})

    async def answer(self, question: str) -> dict[str, Any]:
        (passages,) = await self._retriever.retrieve([question])
        prompt = self._template.render(question=question, passages=passages)
        request = [{"role": "user", "content": prompt}] if self._chat else prompt
        answer = await self._client.generate(request, max_tokens=self._max_tokens)
        sources = [{**passage.source(), "text": passage.text} for passage in passages]
        return {"question": question, "answer": answer.text.strip(), "sources": sources}


async def read_body(receive: Receive) -> bytes:
    """Return the body of a request, or nothing if it is too large or the client left."""
    body = b""
    while len(body) <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body
    return b""


def question_of(body: bytes) -> str | None:
    try:
        values = json.loads(body)
    except ValueError:
        return None
    question = values.get("question") if isinstance(values, dict) else None
    return question if isinstance(question, str) and question.strip() else None


async def respond(send: Send, status: int, values: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(values).encode()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", required=True, help="URL of a PostgreSQL with pgvector; ${NAME} is a variable")
    parser.add_argument("--table", default="docs", help="table that run.sh filled")
    parser.add_argument("--server", default="127.0.0.1:8001", help="HOST:PORT or URL of the server with the models")
    parser.add_argument("--top-k", type=int, default=3, help="passages for each question")
    parser.add_argument("--rerank", action="store_true", help="let the model rerank choose them among 20")
    parser.add_argument("--chat", action="store_true", help="use the model's chat template, for instruction models")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest answer")
    parser.add_argument("--port", type=int, default=8090, help="port on 127.0.0.1")
    given = parser.parse_args()
    try:  # as `inflight batch run --retrieve` does
        engine = create_database_engine(given.database, "input_invalid", pooled=True)
    except BatchError as error:
        parser.error(str(error))
    table = PassageTable(engine, given.table)
    client = AsyncClient(given.server)
    retriever = Retriever(client, table, top_k=given.top_k, candidates=20 if given.rerank else None)
    uvicorn.run(Service(client, retriever, given.chat, given.max_tokens), host="127.0.0.1", port=given.port)


if __name__ == "__main__":
    main()
