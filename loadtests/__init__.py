"""Load tests for an LLM server: Locust users, arrivals, a record of each request, reports."""
