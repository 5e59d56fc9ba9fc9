"""OpenAI's HTTP API as data: parses request bodies and builds responses, for the gateway and for batch jobs."""
