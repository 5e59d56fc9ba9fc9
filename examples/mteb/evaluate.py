"""Evaluates an embedding model with mteb on the questions and documents of examples/retrieval, without network.

`--server` evaluates a served model, `--torch` a checkpoint with sentence-transformers. Prints mteb's scores as JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import mteb
from datasets import Dataset
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

DATA = Path(__file__).resolve().parents[1] / "retrieval"


class TeaAndCoffee(AbsTaskRetrieval):
    """Find the document with the answer to a question."""

    metadata = TaskMetadata(
        name="TeaAndCoffee",
        description="Questions, each with the one paragraph that answers it.",
        dataset={"path": "inflight/tea-and-coffee", "revision": "1"},
        type="Retrieval",
        category="t2t",
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def load_data(self, *given: Any, **options: Any) -> None:
        documents, questions = (_lines(f"{name}.jsonl") for name in ("documents", "questions"))
        corpus = [{"id": one["id"], "title": one["title"], "text": one["text"]} for one in documents]
        queries = [{"id": one["id"], "text": one["question"]} for one in questions]
        relevant = {one["id"]: {one["document"]: 1} for one in questions}
        self.dataset = {
            "default": {
                "test": {
                    "corpus": Dataset.from_list(corpus),
                    "queries": Dataset.from_list(queries),
                    "relevant_docs": relevant,
                    "top_ranked": None,
                }
            }
        }
        self.data_loaded = True


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sides = parser.add_mutually_exclusive_group(required=True)
    sides.add_argument("--server", help="address of a server or a gateway, for example 127.0.0.1:8001")
    sides.add_argument("--torch", help="directory of a checkpoint")
    options = parser.parse_args()
    if options.server:
        from served_encoder import ServedEncoder

        model: Any = ServedEncoder(options.server)
    else:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(options.torch)
    results = mteb.evaluate(model, TeaAndCoffee(), cache=None, show_progress_bar=False)
    (scores,) = results.task_results[0].scores["test"]
    numbers = {name: value for name, value in sorted(scores.items()) if isinstance(value, float)}
    print(json.dumps({"main_score": scores["main_score"], **numbers}))


if __name__ == "__main__":
    main()
