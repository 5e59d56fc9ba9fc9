"""Retrieval: the passages of a table that answer a question best, for batch jobs and services."""
