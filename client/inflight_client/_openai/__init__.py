"""The part of the client that speaks OpenAI's HTTP API, for the commands that also work through a gateway."""
