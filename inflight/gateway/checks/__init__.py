"""Checks of what a model reads and writes: what is looked for, and what happens to a text that has it."""
