"""Dispatches rows: their order, concurrency, servers and retries."""
