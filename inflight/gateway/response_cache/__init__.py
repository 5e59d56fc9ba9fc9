"""The response cache: answers that are a function of their request are computed once."""
