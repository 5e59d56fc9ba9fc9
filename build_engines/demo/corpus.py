"""The demo corpus: product attributes, a prompt with the attributes, and the description as its answer."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields

from build_engines.demo import vocabulary

TRAINING_EXAMPLES = 6000
HELD_OUT_SHARE = 0.1
KNOWN_BRANDS = 0.3
_KIND_OF = {name: kind for kind, names in vocabulary.KINDS.items() for name in names}
_NAMES = tuple(_KIND_OF)
_VALUES = {
    "colour": vocabulary.COLOURS,
    "material": vocabulary.MATERIALS,
    "origin": vocabulary.ORIGINS,
    "feature": vocabulary.FEATURES,
    "audience": vocabulary.AUDIENCES,
}


@dataclass(frozen=True)
class Attributes:
    """The content of a description: a product, its brand, and at least two of the other five attributes."""

    product: str
    brand: str
    colour: str | None = None
    material: str | None = None
    origin: str | None = None
    feature: str | None = None
    audience: str | None = None

    def given(self) -> dict[str, str]:
        """Return the attributes that are set, except the product, in the order of the prompt."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "product"}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Example:
    """An attribute set with its prompt and description."""

    attributes: Attributes
    prompt: str
    description: str


def format_prompt(attributes: Attributes) -> str:
    """Return the one-line prompt of an attribute set: `Product: teapot | Brand: Müller | ... | Description:`.

    The line works as a raw prompt, followed by a space and the description, and as a user's message in the chat
    template.
    """
    listed = [f"{name.capitalize()}: {value}" for name, value in attributes.given().items()]
    return " | ".join([f"Product: {attributes.product}", *listed, "Description:"])


def describe(attributes: Attributes) -> str:
    """Return the description of an attribute set: one sentence per attribute, and a closing phrase.

    Raises KeyError or ValueError if the set has an unknown value.
    """
    name = next(name for name in _NAMES if attributes.product.endswith(name))
    opening = vocabulary.OPENINGS[_NAMES.index(name) % len(vocabulary.OPENINGS)]
    sentences = [opening.format(product=attributes.product, brand=attributes.brand)]
    for field, value in attributes.given().items():
        if field != "brand":
            choices = vocabulary.SENTENCES[field]
            sentences.append(choices[_VALUES[field].index(value) % len(choices)].format(value=value))
    return " ".join([*sentences, _KIND_OF[name]])


def is_held_out(attributes: Attributes) -> bool:
    """Return whether an attribute set is held out from training: a tenth of all sets, by a hash of the prompt."""
    digest = hashlib.sha256(format_prompt(attributes).encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def training_examples(seed: int = 0, count: int = TRAINING_EXAMPLES) -> list[Example]:
    """Return `count` different examples that are not held out; the same seed gives the same examples."""
    return [
        Example(attributes, format_prompt(attributes), describe(attributes))
        for attributes in _distinct_sets(random.Random(f"training {seed}"), count, held_out=False)
    ]


def unseen_attribute_sets(count: int, *, seed: int = 0) -> list[Attributes]:
    """Return `count` different held-out attribute sets; the same seed gives the same sets."""
    return list(_distinct_sets(random.Random(f"unseen {seed}"), count, held_out=True))


def example_prompts(count: int, *, seed: int = 0) -> list[str]:
    """Return `count` different prompts of held-out attribute sets, for trials and load tests of a server."""
    return [format_prompt(attributes) for attributes in unseen_attribute_sets(count, seed=seed)]


def _distinct_sets(source: random.Random, count: int, *, held_out: bool) -> Iterator[Attributes]:
    """Yield `count` different random attribute sets from one side of the split."""
    drawn: set[Attributes] = set()
    while len(drawn) < count:
        attributes = _draw(source)
        if attributes not in drawn and is_held_out(attributes) is held_out:
            drawn.add(attributes)
            yield attributes


def _draw(source: random.Random) -> Attributes:
    """Return a random attribute set: most brands are invented, and two to four other attributes are set."""
    product = f"{source.choice(vocabulary.STYLES)} {source.choice(_NAMES)}"
    brand = source.choice(vocabulary.BRANDS) if source.random() < KNOWN_BRANDS else _invent_brand(source)
    chosen = source.sample(tuple(_VALUES), source.randint(2, 4))
    return Attributes(product, brand, **{field: source.choice(_VALUES[field]) for field in chosen})


def _invent_brand(source: random.Random) -> str:
    """Return an invented name of two or three syllables."""
    parts = (vocabulary.ONSETS, vocabulary.VOWELS, vocabulary.CODAS)
    return "".join(source.choice(part) for _ in range(source.randint(2, 3)) for part in parts).capitalize()
