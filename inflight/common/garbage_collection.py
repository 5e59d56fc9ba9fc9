"""The garbage collector of processes that must not pause."""

import gc


def freeze_loaded() -> None:
    """Have later collections pass over what is loaded: with it, one takes 50 ms and more, in which no stream moves."""
    gc.collect()
    gc.freeze()
