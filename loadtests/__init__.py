"""Load tests that tell the truth about an LLM server: Locust users, arrivals, records of each request, reports."""
