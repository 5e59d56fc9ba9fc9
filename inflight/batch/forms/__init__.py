"""What a row means: how it is asked, and what is written of its answer."""
