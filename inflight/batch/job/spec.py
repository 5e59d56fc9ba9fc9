"""The specification of a job, as in its options and its `job.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from inflight_client.encoder_call import TRANSLATE_OPTIONS
from inflight_client.sampling import PARAMETERS
from pydantic import AfterValidator, BaseModel, Field, field_validator

from inflight.batch.job.deadline import absolute_time
from inflight.batch.job.rows import (
    REFINED_FIELDS,
    ClassifyRequest,
    EmbedRequest,
    RerankRequest,
    RowRequest,
    ScoreRequest,
    TranscribeRequest,
    TranslateRequest,
)
from inflight.batch.job.spec_base import Address, Addressed, StrictModel, setting
from inflight.batch.storage.addresses import absolute_path, is_local, local_path

RowFormatName = Literal["openai", "plain"]
FileFormat = Literal["jsonl", "csv", "parquet", "sql"]
Task = Literal["generate", "embed", "classify", "rerank", "score", "transcribe", "text2text"]
TEXT_COLUMNS: dict[Task, str] = {
    "generate": "prompt",
    "embed": "text",
    "classify": "text",
    "rerank": "query",
    "score": "prompt",
    "transcribe": "audio",
    "text2text": "text",
}
"""The default of `InputSpec.prompt` by task."""
SOURCES = "sources"
"""The value of an answer with the ids and scores of its passages."""
TOKENS = "tokens"
"""The value of an answer with its tokens: for each its id, its log probability, and those of the likeliest by id."""
PASSAGES = "passages"
"""The template's name for them."""


class InputPart(StrictModel):
    """A part of an input, for one of several jobs over it: its first row's number, its number of rows (None: all the
    rest), and the position where `RowSource.read` begins.
    """

    first: int = 0
    rows: int | None = None
    after: Any = None
    line: int = 0


class InputSpec(Addressed):
    """The source of the rows, and their meaning.

    `row_format` openai: each line is a request in OpenAI's Batch format; plain: each row is a prompt, a conversation,
    or values for the template. None: detected from the first rows, as the format is from the address.
    """

    format: FileFormat | None = setting(None, "Format of the input.  [default: by the address]")
    row_format: RowFormatName | None = setting(
        None, "Requests of OpenAI's Batch format, or rows of values.  [default: by the first rows]"
    )
    delimiter: str | None = setting(
        None, "Character between the fields of a CSV file; tab for a tab.  [default: found in its first rows]"
    )
    table: str | None = setting(None, "Table to read, if INPUT is a database.")
    query: str | None = setting(
        None, "SELECT statement to read instead of a whole table; its result must have the --id column."
    )
    id: str | None = setting(None, "Column with the row ids.  [default: a table's key; otherwise rows are numbered]")
    prompt: str = setting(
        "prompt",
        "Column with the prompts, or with lists of messages for conversations; the texts or queries of other tasks."
        "  [default: prompt; embed, classify, text2text: text; rerank: query; score: prompt; transcribe: audio]",
    )
    template: str | None = setting(
        None, "Prompt template (Jinja) over the columns: 'Describe {{ name }}.'; @FILE reads it from a file."
    )
    system: str | None = setting(None, "System message for each prompt; implies --chat.")
    chat: bool = setting(
        False,
        "Send each prompt as a conversation, also if the server names no chat template.  [default: if it names one]",
    )
    raw: bool = setting(False, "Send each prompt as a text, without the model's chat template.")
    keep: tuple[str, ...] = setting((), "A column to copy to the output (repeatable).")
    limit: int | None = setting(None, "Read only the first N rows.", ge=1)
    part: InputPart = InputPart()


class OutputSpec(Addressed):
    """The destination of the answers.

    In a table with existing rows, `key` is the column with the row ids, and `column` receives the answer; `columns` are
    the columns for other values of a record (`finish_reason`, `output_tokens`, ...).
    """

    format: FileFormat | None = setting(None, "Format of the output.  [default: by the address]")
    table: str | None = setting(None, "Table to write, if --out is a database.  [default: --table]")
    key: str | None = setting(None, "Column of the table with the row ids.  [default: --id]")
    column: str | None = setting(
        None,
        "Column to write the answer to, in existing rows; for embed, the column of the embeddings."
        "  [default: create a new table; embed: embedding]",
    )
    columns: dict[str, str] = Field(default_factory=dict)


class GenerationDefaults(StrictModel):
    """Sampling parameters for rows that do not set their own. `answer_schema`: the JSON schema of the answers."""

    max_tokens: int = setting(128, "Maximum tokens per answer, for rows without their own limit.", ge=1)
    temperature: float | None = setting(None, f"{PARAMETERS['temperature'].help}  [default: the model's]")
    top_k: int | None = setting(None, PARAMETERS["top_k"].help)
    top_p: float | None = setting(None, PARAMETERS["top_p"].help)
    seed: int | None = setting(None, PARAMETERS["seed"].help)
    repetition_penalty: float | None = setting(None, PARAMETERS["repetition_penalty"].help)
    presence_penalty: float | None = setting(None, PARAMETERS["presence_penalty"].help)
    frequency_penalty: float | None = setting(None, PARAMETERS["frequency_penalty"].help)
    min_p: float | None = setting(None, PARAMETERS["min_p"].help)
    min_tokens: int | None = setting(None, PARAMETERS["min_tokens"].help)
    adapter: int | None = setting(None, PARAMETERS["adapter"].help)
    stop: tuple[str, ...] = setting((), "Stop word that ends the answer (repeatable).")
    ignore_eos: bool = setting(False, "Continue past the model's end token, up to --max-tokens.")
    top_log_probs: int | None = setting(
        None,
        "Also write the tokens of each answer with their log probabilities, and those of the N likeliest ones there.",
        ge=1,
        le=20,
    )
    generation_config: Literal["model", "ignore"] = setting(
        "ignore",
        "Whether rows are sampled, and prompts sent as conversations, as the model's files say, if nothing else is"
        " given.  [default: model]",
    )
    answer_schema: dict[str, Any] | None = None

    @property
    def answer_properties(self) -> tuple[str, ...]:
        """The properties of the object that each answer is, which are columns of the output."""
        return tuple((self.answer_schema or {}).get("properties") or ())


class EncodeSpec(StrictModel):
    """What is done with rows that are not generated, and the index over their vectors in a table."""

    task: Literal["embed", "classify", "rerank", "score", "transcribe", "text2text"]
    documents: str = setting("documents", "Column with the list of documents of a rerank row.")
    continuations: str = setting(
        "continuations", "Column with the text, or list of texts, to score after a row's prompt; else the prompt is."
    )
    max_length: int | None = setting(
        None,
        "Score texts in windows of this many tokens; engines to compare need the same.  [default: the model's context]",
        ge=2,
    )
    input_type: str | None = setting(None, "Name of the model's prompt for embed: query, document, or one of its own.")
    dimensions: int | None = setting(None, "Use only the first N values of each embedding.", ge=1)
    truncate: bool = setting(
        False, "Cut texts that are too long (score: the beginning of prompts), instead of refusing them."
    )
    language: str | None = setting(
        None, "Language of the audio of rows without a column `language`, such as en.  [default: found in each audio]"
    )
    to_english: bool = setting(False, "Translate the audio into English.")
    initial_prompt: str | None = setting(None, "Words that may come, such as names, and the style of the transcripts.")
    word_timestamps: bool = setting(False, "Write the times of words too, in `segments`.")
    max_seconds: float = setting(7200.0, "Refuse audio that is longer.", gt=0)
    beam_width: int | None = setting(None, "Number of beams.  [default: 1; text2text: the model's]", ge=1, le=32)
    target_language: str | None = setting(
        None, "Language, or name of a prompt, for texts of rows without a column `target_language`."
    )
    source_language: str | None = setting(
        None, "Language of the texts of rows without a column `source_language`.  [default: the model's]"
    )
    length_penalty: float | None = setting(None, "Above 1, longer answers of text2text.  [default: the model's]")
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    index: Literal["hnsw", "ivfflat", "none"] = setting(
        "hnsw", "Index to build over the embeddings in a table once all rows are done."
    )
    metric: Literal["cosine", "l2", "ip"] = setting("cosine", "Distance of that index; ip: inner product.")

    def sample(self) -> RowRequest:
        """Return a simple request of the task, with these options."""
        if self.task == "embed":
            return EmbedRequest(("Hello",), self.input_type, self.dimensions, self.truncate)
        if self.task == "classify":
            return ClassifyRequest("Hello", self.truncate)
        if self.task == "rerank":
            return RerankRequest("Hello", ("Hello",), self.truncate)
        if self.task == "text2text":
            return self.translate_request("Hello", {})
        if self.task == "transcribe":
            return TranscribeRequest("")
        return ScoreRequest((0,), ((0,),))

    def translate_request(self, text: str, languages: Mapping[str, str]) -> TranslateRequest:
        """Return the request for a text of a row with these languages, by their columns."""
        options: dict[str, Any] = {name: getattr(self, name) for name in TRANSLATE_OPTIONS}
        return TranslateRequest(text, **{**options, **languages}, truncate=self.truncate)

    def binding(self) -> dict[str, Any]:
        """Return what is bound to the state of a job; jobs from before there were some tasks bind nothing of them."""
        own = _LATER_FIELDS.get(self.task, ())
        later = {name for names in _LATER_FIELDS.values() for name in names}.difference(own)
        later |= _unset(self, "source_language")
        return self.model_dump(mode="json", exclude={"index", "metric", "max_seconds", *later})


SPEECH_FIELDS = ("language", "to_english", "initial_prompt", "word_timestamps", "beam_width")
_LATER_FIELDS: dict[Task, tuple[str, ...]] = {
    "score": ("continuations", "max_length"),
    "transcribe": SPEECH_FIELDS,
    "text2text": TRANSLATE_OPTIONS,
}


class RetrievalSpec(Addressed):
    """Where the passages of each row's prompt are retrieved from, and how."""

    address: Address = Field(
        description="Retrieve {{ passages }} for the template of each row: URL of a PostgreSQL with pgvector."
    )
    table: str = Field(description="Table with the passages and their embeddings.")
    column: str = setting("embedding", "Column of that table with the embeddings.")
    text: str = setting("text", "Column of that table with the passages' texts.")
    id: str | None = setting(None, "Column of that table with the passages' ids.  [default: its key, or id]")
    query: str = setting("question", "Column of INPUT with the text to search for.")
    metric: Literal["cosine", "l2", "ip"] = setting("cosine", "Distance; that of the table's index (--metric).")
    top_k: int = setting(5, "Number of passages for each row.", ge=1, le=1000)
    rerank: bool = setting(False, "Have a reranker choose the passages among the nearest ones.")
    candidates: int | None = setting(
        None, "Number of nearest passages for the reranker.  [default: 4 times --retrieve-top-k]", ge=1, le=1000
    )
    input_type: str = setting("query", "Name of the embedding model's prompt for questions.")
    dimensions: int | None = setting(None, "Use only the first N values of each question's embedding.", ge=1)

    @property
    def nearest(self) -> int:
        """The number of passages to search for."""
        return max(self.candidates or min(4 * self.top_k, 1000), self.top_k) if self.rerank else self.top_k


class RefineSpec(StrictModel):
    """When a row goes to a second model, whose servers are `RunOptions.refine_with`."""

    when: str = Field(
        description="Condition to refine an answer: invalid-json, schema, 'logprob < NUMBER' or regex:PATTERN, with |"
        " between several."
    )


class RunOptions(StrictModel):
    """How the rows are run. Nothing here changes an answer, so all of it may change when a job is resumed."""

    servers: tuple[str, ...] = setting(("127.0.0.1:8001",), "Server: HOST:PORT or a URL (repeatable).")
    model: str | None = setting(None, "Model on the server.  [default: the server's model for --task]")
    headers: dict[str, str] = Field(default_factory=dict, exclude=True)
    retrieve_servers: tuple[str, ...] = setting(
        (),
        "Encoder server for --retrieve; repeat it for fallbacks.  [default: --server]",
    )
    ephemeral: str | None = setting(None, "Start a server for this engine directory while the job runs, on free ports.")
    ephemeral_options: dict[str, Any] = Field(default_factory=dict)
    refine_with: tuple[str, ...] = setting(
        (), "Server of a larger model for the answers that meet --refine-when (repeatable)."
    )
    runner: Literal["local", "ray"] = setting("local", "Run rows in this process, or on Ray workers.")
    workers: int | None = setting(None, "Number of Ray workers.  [default: one per server]", ge=1)
    concurrency: int | None = setting(
        None, "Maximum concurrent requests per server.  [default: found while the job runs]", ge=1, le=65536
    )
    texts_per_request: int = setting(
        64, "Maximum texts of rows sent in one request, for embed, classify and --retrieve.", ge=1, le=256
    )
    priority: int | None = setting(-1, "Request priority; interactive traffic has 0.", ge=-(2**31), le=2**31 - 1)
    window: int = setting(1024, "Number of rows to prefetch and reorder.", ge=1, le=1_000_000)
    order: Literal["prefix", "arrival"] = setting(
        "prefix", "Send rows sorted by length and shared prefix, or in input order."
    )
    row_timeout: float | None = setting(900.0, "Timeout of a request, in seconds.", gt=0)
    max_attempts: int = setting(20, "Maximum attempts per row, for transient failures.", ge=1)
    max_engine_crashes: int = setting(3, "Engine crashes a row may cause before it becomes a dead letter.", ge=1)
    drain_seconds: float = setting(25.0, "Seconds after SIGTERM, SIGHUP or Ctrl-C to finish requests in flight.", ge=0)
    server_wait_timeout: float = setting(
        1800.0, "Stop the job after this many seconds without a server that answers.", gt=0
    )
    checkpoint_seconds: float = setting(
        0.5, "Seconds between checkpoints; work since the last one is repeated after a crash.", gt=0, le=600
    )
    dedupe: bool = setting(True, "Compute identical rows once, if they are greedy or have a seed.")
    finish_by: Annotated[str, AfterValidator(absolute_time)] | None = setting(
        None,
        "Time, or duration such as 6h, by which to finish: rows have a low priority until more speed is needed for it.",
    )
    until_empty: float = setting(30.0, "Finish once INPUT, a message queue, was empty for this many seconds.", ge=0)
    forever: bool = setting(
        False, "Wait for messages until a signal comes, and give the output in segments: answers.000001.jsonl, ..."
    )
    lease_seconds: float = setting(60.0, "Seconds until a message of a worker that died comes again.", ge=1, le=43200)
    max_deliveries: int = setting(
        3, "Deliveries of a message until it is tried apart, and deaths of workers until it is a dead letter.", ge=1
    )
    dead_letters: str | None = setting(
        None, "Queue of SQS, or subject of JetStream, that gets dead letters.  [default: SQS: the redrive policy's]"
    )
    segment_rows: int = setting(100_000, "Rows after which a segment of --forever is complete.", ge=1)
    segment_seconds: float = setting(3600.0, "Seconds after which it is.", gt=0)
    remember_seconds: float = setting(
        86400.0, "Seconds for which a message that comes again after its record is not answered again.", ge=1
    )
    price_per_hour: float | None = setting(None, "Cost of the machines per hour, for the cost figures.", ge=0)
    price_per_million_input: float | None = setting(None, "Price of a million tokens of prompts, in USD.", ge=0)
    price_per_million_output: float | None = setting(None, "Price of a million tokens of answers, in USD.", ge=0)
    refine_price_per_million_input: float | None = setting(
        None, "The same for --refine-with.  [default: --price-per-million-input]", ge=0
    )
    refine_price_per_million_output: float | None = setting(
        None, "The same for --refine-with.  [default: --price-per-million-output]", ge=0
    )

    @field_validator("ephemeral")
    @classmethod
    def _found_from_anywhere(cls, path: str | None) -> str | None:
        return None if path is None else absolute_path(path)


class Job(StrictModel):
    """A whole job: `input`, `output`, `defaults`, `encode`, `retrieval` and `refine` are bound to its state,
    `run_options` are not.

    `encode`: None for the task `generate`. `retrieval`: None if its prompts have no passages. `compact_vectors`: this
    is a part of a job whose output has a column of vectors, so that its lines have them in the same form.
    """

    input: InputSpec
    output: OutputSpec
    defaults: GenerationDefaults = Field(default_factory=lambda: GenerationDefaults())
    encode: EncodeSpec | None = None
    retrieval: RetrievalSpec | None = None
    refine: RefineSpec | None = None
    run_options: RunOptions = Field(default_factory=lambda: RunOptions())
    compact_vectors: bool = False

    @property
    def task(self) -> Task:
        return "generate" if self.encode is None else self.encode.task

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of an answer's values after those of its task: properties of a schema, kept columns, the sources
        of retrieval, and what became of the first answer."""
        sources = () if self.retrieval is None else (SOURCES,)
        refined = () if self.refine is None else REFINED_FIELDS
        tokens = () if self.defaults.top_log_probs is None else (TOKENS,)
        return (*self.defaults.answer_properties, *tokens, *self.input.keep, *sources, *refined)

    def binding(self) -> dict[str, Any]:
        """Return the values that must be the same when the job is resumed.

        An input file may have another path, on another machine: its content is bound, by its fingerprint. The index may
        change until it is built.
        """
        address = self.input.address
        name = local_path(address).name if is_local(address) else address
        return {
            "input": {**self.input.model_dump(mode="json"), "address": name},
            "output": self.output.model_dump(mode="json"),
            "defaults": self.defaults.model_dump(mode="json", exclude=_unset(self.defaults, *_LATER_DEFAULTS)),
            **({} if self.encode is None else {"encode": self.encode.binding()}),
            **({} if self.retrieval is None else {"retrieval": self.retrieval.model_dump(mode="json")}),
            **({} if self.refine is None else {"refine": self.refine.model_dump(mode="json")}),
        }


_LATER_DEFAULTS = ("answer_schema", "top_log_probs")


def _unset(values: BaseModel, *names: str) -> set[str]:
    """Return those of the names that have no value: jobs from before there were such fields bind nothing of them."""
    return {name for name in names if getattr(values, name) is None}


FACTS = "|"
"""Between the facts of a build that is no fingerprint; what a server does not report is empty."""


def fingerprint(values: Any) -> str:
    """Return a short hash of JSON values."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
