"""A stand-in for any server of OpenAI's protocol, in a thread of the test's process.

with openai_server("tgi", faults=[Fault("status", 429, {"retry-after": "1"})]) as server:
    AsyncOpenAIServer(server.address)
"""

from tests.standins.openai_servers.server import Fault, Received, StandIn, openai_server

__all__ = ["Fault", "Received", "StandIn", "openai_server"]
