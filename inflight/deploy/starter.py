"""Starts the processes of a server, again and again the same way."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from inflight.deploy import launch, preflight, request_log, triton
from inflight.deploy.deployment import Deployment, Source, lay_out
from inflight.deploy.grpc_tls import GrpcTls
from inflight.deploy.launch import Launch, Mode
from inflight.deploy.life import Life
from inflight.deploy.log import size as log_size
from inflight.deploy.models import ENGINE_MODEL
from inflight.deploy.options import DeploymentOptions
from inflight.deploy.ports import Hosts, Ports, reachable
from inflight.deploy.probe import Probe
from inflight.deploy.process import TritonProcess
from inflight.deploy.run_directory import RunDirectory, remove_shared_memory

# Triton's own limit for its end lies below that of who stops it, so that it can say what hangs.
_EXIT_SECONDS = 4


@dataclass(frozen=True)
class Starter:
    """What a server is started with: the program, what it serves, how many processes it takes, and its directory."""

    installation: triton.Installation
    deployment: Deployment
    launch: Launch
    run: RunDirectory
    variables: Mapping[str, str]
    """What else goes into the environment."""

    @classmethod
    def prepare(
        cls,
        source: Source,
        options: DeploymentOptions,
        mode: Mode | None,
        log: Path | None,
        run: RunDirectory,
        report: Callable[[str], None],
    ) -> Starter:
        """Look whether this machine can serve the engine, and lay out what Triton reads.

        `log` is the file for a line about each answer. Raises DeployError as `triton.find`, `preflight.check`,
        `request_log.variables`, `launch.choose` and `lay_out` do.
        """
        installation = triton.mirror(triton.find(), run.path / "triton")
        preflight.check(source.manifest, installation.root / "backends", report)
        variables = request_log.variables(log, source.manifest)
        deployment = lay_out(source, options, run.path, report)
        chosen = launch.choose(source.manifest, deployment.parameters, mode)
        return cls(installation, deployment, chosen, run, variables)

    def begin(self, hosts: Hosts, ports: Ports, grpc_tls: GrpcTls | None) -> Life:
        """Start the processes, which listen there once they stand."""
        key = secrets.token_hex(16)
        server = triton.command(
            self.installation,
            self.deployment.repository,
            hosts=hosts,
            ports=ports,
            shm_prefix=self.run.shm_prefix,
            admin_key=key,
            exit_seconds=_EXIT_SECONDS,
            grpc_tls=grpc_tls,
        )
        self.deployment.refresh()
        remove_shared_memory(self.run.shm_prefix)  # a guard that was killed could not
        variables = {
            **triton.environment(self.installation),
            **self.deployment.variables,
            **self.variables,
            **self.launch.variables(self.run.path),
        }
        command = self.launch.command(server, self._follower)
        begins = log_size(self.run.log)
        process = TritonProcess(command, variables, self.run.log, self.run.shm_prefix)
        return Life(process, Probe(reachable(hosts.http), ports.http, key), self.run.log, begins)

    def _follower(self, rank: int) -> list[str]:
        # Each rank has shared memory of its own; a prefix that begins with the server's is swept with it.
        return triton.follower_command(
            self.installation,
            self.deployment.repository,
            model=ENGINE_MODEL,
            shm_prefix=f"{self.run.shm_prefix}rank{rank}-",
            exit_seconds=_EXIT_SECONDS,
        )
