"""For Locust's own command: `locust -f loadtests/locustfile.py --host 127.0.0.1:8001`, web page and all.

`--host` is the server as the client names it: HOST:PORT for gRPC, http://HOST:PORT for HTTP; by it one of the users is
chosen, unless one is named on the command line. With `--rate` or `--trace` the load is an open loop. `--out DIR` keeps
what `inflight load report DIR` needs.
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
