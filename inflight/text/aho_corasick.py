"""Finds the first of several words in a sequence of symbols."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

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
