from __future__ import annotations

import pytest

from tests.text.example_tokenizers import KINDS


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of tokenizer: `example_tokenizers.tokenizer_of(kind)`."""
    return str(request.param)
