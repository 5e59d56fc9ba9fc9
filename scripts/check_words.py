"""Check the wording of documentation, docstrings, comments and messages; exit with 1 if a banned word is found.

In Markdown, code, link targets and text in double quotes are not checked. Give paths to check these files alone,
`--python` to check the packages too, and `--count` to count hits.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/**/*.md", "Makefile")
PACKAGES = ("inflight", "client", "build_engines", "loadtests", "model_repository", "benchmarks")
# pattern: what to write instead
EVERYWHERE = {
    "whoever|nobody|somebody": "anyone who, no client, a user, another process",
    "mends?|mended|mending|reckon(s|ed|ing)?": "fix; calculate, estimate",
    "of (its|their) own accord": "automatically",
    "bury|buries|buried|befalls?|befell|hearkens?|askers?": "the standard term: reap, happen, listen, sender",
    "behind your back|without a word": "silently",
    "lest|the house|sees? to (it|a|the|that)|died under it|in vain|for ever|upon which|of all that": "plain words",
    "strangers?": "untrusted callers",
    "anew|oftener": "again, more often",
}
DOCUMENTS = {
    "(is|are|was) none": "does not exist, is invalid, is not set",
    "tells|told": "reports, sends, publishes",
    "stands?|stood": "is, is in",
    "shall|hears?|heard": "must, imperative; receives",
    "life|lives|carr(y|ies|ied)": "run, runs; has, serves, holds",
    "thrown (out|away)|parted by": "evicted, separated by",
    "goes on|go on|went on": "continues",
    "looked for|looked up|whatever (was|is|it|becomes?|happens)": "searched, read; plain words",
}
# made from code, which is checked itself
GENERATED = ("docs/errors.md", "docs/tensorrt-llm-parameters.md", "docs/tensorrt-llm.md")
UNCHECKED = (r"^( *)```.*?^\1```", r"`[^`\n]*`", r"\]\([^)\n]*\)", r'"[^"\n]*"')


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Each checked text of a file, with the number of its first line."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".md" or path.name == "Makefile":
        for pattern in UNCHECKED if path.suffix == ".md" else ():  # blank it, and keep its lines
            content = re.sub(pattern, lambda at: re.sub(r"[^\n]", "·", at[0]), content, flags=re.DOTALL | re.MULTILINE)
        yield 1, content
    else:
        tokens = tokenize.generate_tokens(io.StringIO(content).readline)
        yield from ((one.start[0], one.string) for one in tokens if one.type in (tokenize.COMMENT, tokenize.STRING))


def main(arguments: list[str]) -> int:
    counting = "--count" in arguments
    patterns = (*PAGES, *(f"{name}/**/*.py" for name in PACKAGES if "--python" in arguments))
    given = [Path(one).resolve() for one in arguments if not one.startswith("--")]
    paths = given or [path for pattern in patterns for path in ROOT.glob(pattern)]
    found: Counter[str] = Counter()
    for path in sorted(paths):
        name = path.relative_to(ROOT).as_posix()
        words = EVERYWHERE | (DOCUMENTS if path.suffix != ".py" and name not in GENERATED else {})
        for start, text in texts(path):
            for pattern, better in words.items():
                for match in re.finditer(rf"\b(?:{pattern})\b(?!-)".replace(" ", r"\s+"), text, re.IGNORECASE):
                    found[pattern] += 1
                    if not counting:
                        print(f"{name}:{start + text.count(chr(10), 0, match.start())}: {match[0]!r}; write: {better}")
    if counting:
        print("\n".join(f"{hits:5} {pattern}" for pattern, hits in found.most_common()))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
