"""Makes the import of transformers' models take less time."""

from __future__ import annotations


def skip_sklearn() -> None:
    """Let transformers believe that scikit-learn is absent; call it before you import a model.

    Where it is installed, as by nncf, its import takes seconds, and only assisted generation with two tokenizers uses
    it.
    """
    from transformers.utils import import_utils

    import_utils._sklearn_available = False
