"""Code that runs inside Triton's processes: the engine interface, its backends, tokenizing and detokenizing."""
