"""What runs inside Triton's processes: the engine seam and its adapters, tokenizing and detokenizing."""
