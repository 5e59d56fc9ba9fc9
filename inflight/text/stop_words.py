"""Finds the stop words of one request in its answer, and holds back tokens that may belong to one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from inflight.text.detokenizer import CONTEXT_TOKENS, Chunk, Detokenizer

Symbol = TypeVar("Symbol", bound=Hashable)


class AhoCorasick(Generic[Symbol]):
    """Aho and Corasick's automaton (1975): the cost per symbol does not depend on the number or length of the words.

    The first word is the one that begins first. A complete word is therefore not final while a longer one that began
    before it may still match. `found` is where the first complete word begins, `undecided` is where the earliest
    possible match begins, both counted in symbols.
    """

    def __init__(self, words: Iterable[Sequence[Symbol]]) -> None:
        self._children: list[dict[Symbol, int]] = [{}]
        self._depths = [0]
        self._longest_ends = [0]
        for word in words:
            self._add(word)
        self._fallbacks = [0] * len(self._children)
        self._link()
        self._node = 0
        self._position = 0
        self.found: int | None = None
        self.undecided = 0

    def feed(self, symbol: Symbol) -> bool:
        """Take the next symbol; return True once no further symbol can change `found`."""
        node = self._node
        while node and symbol not in self._children[node]:
            node = self._fallbacks[node]
        self._node = node = self._children[node].get(symbol, 0)
        self._position += 1
        if self._longest_ends[node]:
            begin = self._position - self._longest_ends[node]
            self.found = begin if self.found is None else min(begin, self.found)
        self.undecided = self._position - self._depths[node]
        return self.found is not None and self.found <= self.undecided

    def _add(self, word: Sequence[Symbol]) -> None:
        node = 0
        for depth, symbol in enumerate(word, start=1):
            child = self._children[node].get(symbol)
            if child is None:
                child = self._children[node][symbol] = len(self._children)
                self._children.append({})
                self._depths.append(depth)
                self._longest_ends.append(0)
            node = child
        self._longest_ends[node] = self._depths[node]

    def _link(self) -> None:
        """Link each node to the node of its longest proper suffix, breadth first."""
        nodes = deque(self._children[0].values())
        while nodes:
            node = nodes.popleft()
            for symbol, child in self._children[node].items():
                fallback = self._fallbacks[node]
                while fallback and symbol not in self._children[fallback]:
                    fallback = self._fallbacks[fallback]
                fallback = self._fallbacks[child] = self._children[fallback].get(symbol, 0)
                self._longest_ends[child] = self._longest_ends[child] or self._longest_ends[fallback]
                nodes.append(child)


class Released(NamedTuple):
    """Tokens that may be sent; `found` says that a stop word follows them and the answer ends.

    A stop word may begin within the last token's text: `dropped_characters` at its end are then not part of the answer.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    found: bool = False
    dropped_characters: int = 0


NOTHING_RELEASED = Released((), ())


class StopWords:
    """Takes an answer's tokens and releases those in which no stop word can begin.

    The answer is cut where the first stop word begins, as if the text of the whole answer were searched. Between a word
    given as ids and one given as text, the one that completes first counts. A stop word begins after the first
    `min_tokens` tokens, which always belong to the answer. (TensorRT-LLM only suppresses end tokens before
    `min_tokens`, and may cut a shorter answer at a stop word.)
    """

    def __init__(
        self,
        stop_ids: Sequence[Sequence[int]],
        stop_texts: Sequence[str],
        min_tokens: int,
        load_detokenizer: Callable[[], Detokenizer],
        prompt_ids: Sequence[int] = (),
    ) -> None:
        """`load_detokenizer` is called only for text stop words. The answer continues the text of `prompt_ids`."""
        ids, texts = list(filter(None, stop_ids)), list(filter(None, stop_texts))
        self._in_ids = AhoCorasick[int](ids) if ids else None
        self._in_text = AhoCorasick[str](texts) if texts else None
        self._detokenizer = load_detokenizer() if texts else None
        self._min_tokens = max(0, min_tokens)
        self._held: list[int] = []
        self._held_log_probs: list[float] = []
        # Length of the answer's text after each held token, of the text sent, and the position at which the search
        # began.
        self._text_ends: list[int] = []
        self._sent_text = 0
        self._searched_from = 0
        self._sent = 0
        self._context: list[int] = []
        if texts:
            self._context = self._context_after(prompt_ids)

    def feed(self, token_ids: Sequence[int], log_probs: Sequence[float] = (), ended: bool = False) -> Released:
        """Take the answer's next tokens; with `ended`, they are the last ones and nothing is held back."""
        self._held_log_probs += log_probs
        for token_id in token_ids:
            if self._search_token(token_id):
                return self._cut()
        if not ended:
            return self._release(self._releasable())
        if self._in_text is not None and self._searching:
            self._search_text(self._added_text([], final=True), self._text_length)
        matched = any(search is not None and search.found is not None for search in (self._in_ids, self._in_text))
        return self._cut() if matched else self._release(len(self._held))

    def _search_token(self, token_id: int) -> bool:
        """Search one more token; return True once the first stop word is known."""
        self._held.append(token_id)
        decided = self._searching and self._in_ids is not None and self._in_ids.feed(token_id)
        if self._in_text is not None:
            piece = self._added_text([token_id], final=False)
            begin = self._text_length
            self._text_ends.append(begin + len(piece))
            if not self._searching:
                # A character that begins in these tokens belongs to the answer too.
                self._searched_from = self._text_length + bool(self._added_text([], final=True))
            elif self._search_text(piece, begin):
                decided = True
        return decided

    @property
    def _searching(self) -> bool:
        return self._sent + len(self._held) > self._min_tokens

    @property
    def _text_length(self) -> int:
        return self._text_ends[-1] if self._text_ends else self._sent_text

    def _added_text(self, token_ids: list[int], final: bool) -> str:
        """Return the text that the last held token adds; without a token, that of an incomplete character."""
        assert self._detokenizer is not None
        before = self._context_after(self._held[: -1 if token_ids else None])
        (piece,) = self._detokenizer.texts([Chunk(token_ids, before, final)])
        return piece

    def _context_after(self, token_ids: Sequence[int]) -> list[int]:
        """Return the last tokens that have text, up to these."""
        assert self._detokenizer is not None
        textless_ids = self._detokenizer.special_token_ids
        text_ids = [token_id for token_id in token_ids if token_id not in textless_ids]
        return [*self._context, *text_ids][-CONTEXT_TOKENS:]

    def _search_text(self, piece: str, begin: int) -> bool:
        """Search the text added from the character `begin` on; return True once its first stop word is known."""
        assert self._in_text is not None
        return any(map(self._in_text.feed, piece[max(0, self._searched_from - begin) :]))

    def _releasable(self) -> int:
        """Return how many of the held tokens can't belong to a stop word."""
        count = len(self._held)
        if self._in_ids is not None:
            count = self._min_tokens + self._in_ids.undecided - self._sent
        if self._in_text is not None:
            settled_text = self._searched_from + self._in_text.undecided
            of_text = bisect_right(self._text_ends, settled_text)
            # A token that adds no text may begin a character, with which a stop word may begin: keep it.
            while of_text and self._text_before(of_text) == self._text_before(of_text - 1):
                of_text -= 1
            count = min(count, of_text)
        return min(max(count, self._min_tokens - self._sent), len(self._held))

    def _text_before(self, count: int) -> int:
        """Return the length of the answer's text up to the held token number `count`."""
        return self._text_ends[count - 1] if count else self._sent_text

    def _cut(self) -> Released:
        """Release the rest of the answer up to its first stop word."""
        of_text = self._cut_by_text()
        if self._in_ids is not None and self._in_ids.found is not None:
            count = self._min_tokens + self._in_ids.found - self._sent
            if of_text is None or count < of_text[0]:
                return self._release(count, matched=True)
        assert of_text is not None
        return self._release(of_text[0], matched=True, dropped_characters=of_text[1])

    def _cut_by_text(self) -> tuple[int, int] | None:
        """Return how many held tokens belong to the answer, and how many characters at their end don't."""
        if self._detokenizer is None or self._in_text is None or self._in_text.found is None:
            return None
        begin = self._searched_from + self._in_text.found
        count = bisect_left(self._text_ends, begin) + 1 if begin > self._sent_text else 0
        count = min(max(count, self._min_tokens - self._sent), len(self._held))
        # The last chunk includes incomplete characters; text after the answer is dropped.
        (text,) = self._detokenizer.texts([Chunk(self._held[:count], self._context, final=True)])
        return count, max(0, len(text) - (begin - self._sent_text))

    def _release(self, count: int, matched: bool = False, dropped_characters: int = 0) -> Released:
        passed = Released(tuple(self._held[:count]), tuple(self._held_log_probs[:count]), matched, dropped_characters)
        if self._in_text is not None:
            self._sent_text = self._text_before(count)
            self._context = self._context_after(passed.token_ids)
            del self._text_ends[:count]
        self._sent += count
        del self._held[:count], self._held_log_probs[:count]
        return passed
