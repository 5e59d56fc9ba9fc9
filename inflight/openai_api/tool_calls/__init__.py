"""Incremental parsers of the tool calls in an answer, one module for each family of formats."""
