"""Generates texts of a given number of tokens from common words; the same random source gives the same text."""

from __future__ import annotations

import random
from typing import Protocol

# Short, frequent English words: most tokenizers have a single token for nearly every one.
_TEXT = """
about above across after again against along also always among animal another answer area around back ball bank base
bear because been before began behind being believe below best better between big bird black blue board boat body book
born both bottom box boy bread break bridge bring brother brown build busy call came can car care carry case catch
cause change check child city class clean clear close cloud coast cold color come common cook cool corner cost could
count country course cover cross cut dark day deal deep desk door down draw dream dress drink drive dry during each
early earth ease east eat edge egg eight end energy enough equal even ever every eye face fact fair fall family far
farm fast father feed feel feet field fight figure fill final find fine fire first fish five floor flower fly follow
food foot force forest form forward four free fresh friend from front fruit full game garden gave glass gold good
grass gray great green ground group grow guess half hand happy hard head hear heart heat heavy help here high hill
history hold home horse hot hour house human hundred idea inch inside iron island job join jump just keep kind king
knew know lake land language large last late laugh law lead learn leave left less letter level life light line list
listen little live long look lost low machine main make man many map mark market matter mean measure meet metal middle
might mile milk mind minute miss money moon more morning most mother mountain mouth move music must name nation near
need never new next night north note nothing notice now number object ocean off often old once one only open order
other our out over own page paint paper part pass past path pattern people perhaps period person picture piece place
plain plan plane plant play point poor power present press problem produce public pull push question quick quiet race
rain range reach read ready real reason record red remember rest rich ride right ring rise river road rock room round
row rule run sail salt same sand school science sea season seat second seed seem self sell send sense serve set seven
shape sharp ship shop short should show side sight sign silver simple since sing single sister sit six size skin sky
sleep slow small snow soft soil some song soon sound south space speak special speed spring square stand star start
state stay steel step still stone stop store storm story street strong study such sugar summer sun sure surface table
tail take talk tall teach team tell temper ten test than thank their them then there these thing think third this those
though thought thousand three through time tire together told tone too took top total touch toward town track trade
train travel tree true try turn twenty two type under unit until use usual valley value very view village visit voice
wait walk wall want war warm wash watch water wave way wear weather week weight well west wheel when where which while
white who whole wide wild wind window winter wish with woman wonder wood word work world would write year yellow young
"""
COMMON_WORDS = _TEXT.split()


class TextGenerator(Protocol):
    """Generates texts of a given number of tokens."""

    @property
    def overhead(self) -> int:
        """Tokens that a whole text has beyond those of its pieces, such as a token that begins every text."""
        ...

    def piece(self, tokens: int, source: random.Random, first: bool = False) -> str:
        """Return a part of a text with this many tokens, at least one word; `first`: it begins the text.

        From the same random state, a shorter piece is the beginning of a longer one.
        """
        ...

    def fit(self, text: str, tokens: int, source: random.Random) -> str:
        """Return the whole text; its last words are changed if necessary, so that it has this many tokens."""
        ...


class EstimatedTextGenerator:
    """Counts each word as `tokens_per_word` tokens.

    For GPT-2's vocabulary of 50 257 this is exactly 1, since each of the words above is one token there.
    """

    overhead = 0

    def __init__(self, tokens_per_word: float) -> None:
        self._tokens_per_word = tokens_per_word

    def piece(self, tokens: int, source: random.Random, first: bool = False) -> str:
        return " ".join(source.choices(COMMON_WORDS, k=max(1, round(tokens / self._tokens_per_word))))

    def fit(self, text: str, tokens: int, source: random.Random) -> str:
        return text


def prompt_text(
    texts: TextGenerator, tokens: int, source: random.Random, prefix: str = "", prefix_tokens: int = 0
) -> str:
    """Return a text of `tokens` tokens, at least one word, after `prefix`, whose `prefix_tokens` are added."""
    own = max(1, tokens - texts.overhead)
    piece = texts.piece(own, source, first=not prefix)
    whole = f"{prefix} {piece}" if prefix else piece
    return texts.fit(whole, prefix_tokens + own + texts.overhead, source)
