"""The locustfile for Locust's own command: `locust -f loadtests/locustfile.py --host 127.0.0.1:8001`.

`--host` is the server's address as the client takes it: HOST:PORT for gRPC, http://HOST:PORT for HTTP. It selects the
user class unless one is named on the command line. With `--rate` or `--trace` the load is an open loop. `--out DIR`
writes what `inflight load report DIR` needs.
"""

from locust import events

from loadtests.generator.locust_command import LocustCommand
from loadtests.generator.users import (
    GenerateStreamUser,
    GenerateUser,
    GrpcStreamUser,
    GrpcUser,
)

__all__ = ["GenerateStreamUser", "GenerateUser", "GrpcStreamUser", "GrpcUser"]

LocustCommand.register(events)
