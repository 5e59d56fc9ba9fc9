"""Starts the processes of a server, in the same way each time."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.manifest import FILE_NAME as ENGINE_FILE
from inflight.deploy.repository.configure import publish
from inflight.deploy.repository.engine_set import EngineSet
from inflight.deploy.repository.model_names import ENGINE_MODEL
from inflight.deploy.repository.options import DeploymentOptions, adapter_digests
from inflight.deploy.server import preflight, process_layout, triton
from inflight.deploy.server.grpc_tls import GrpcTls
from inflight.deploy.server.instance import ServerInstance
from inflight.deploy.server.ports import ListenHosts, ListenPorts, reachable
from inflight.deploy.server.probe import Probe
from inflight.deploy.server.process import TritonProcess
from inflight.deploy.server.process_layout import MultiGpuMode, ProcessLayout
from inflight.deploy.server.run_directory import ServerRunDirectory, remove_shared_memory
from inflight.deploy.server.source import PreparedRepository, ServingSource, prepare_repository
from inflight.deploy.server.triton_log import log_size as log_size

# Triton's own exit timeout is shorter than the supervisor's, so that Triton can log what hangs.
_EXIT_TIMEOUT = 4


@dataclass(frozen=True)
class ServerLauncher:
    """The configuration of a server's starts: program, repository, process layout and run directory."""

    installation: triton.TritonInstallation
    repository: PreparedRepository
    layout: ProcessLayout
    run_directory: ServerRunDirectory
    environment: Mapping[str, str]
    """Additional environment variables."""
    engines: EngineSet
    adapters: tuple[Path, ...]

    @classmethod
    def prepare(
        cls,
        source: ServingSource,
        options: DeploymentOptions,
        mode: MultiGpuMode | None,
        request_log_path: Path | None,
        run_directory: ServerRunDirectory,
        on_message: Callable[[str], None],
    ) -> ServerLauncher:
        """Check that this machine can serve the engines, and lay out what Triton reads.

        `request_log_path` is the file for a line about each answer. Raises DeployError as `find_triton`,
        `check_engine`, `check_kv_cache`, `request_log_environment`, `choose_layout` and `prepare_repository` do.
        """
        installation = triton.mirror_wheel(triton.find_triton(), run_directory.path / "triton")
        for manifest in source.engines.all:
            preflight.check_engine(manifest, installation.root / "backends", on_message)
        variables = preflight.request_log_environment(request_log_path, source.engines.main)
        deployment = prepare_repository(source, options, run_directory.path, on_message)
        preflight.check_kv_cache(source.engines.generator, deployment.kv_cache_tokens)
        chosen = process_layout.choose_layout(source.engines.main, deployment.parameters, mode)
        return cls(installation, deployment, chosen, run_directory, variables, source.engines, options.adapters)

    def start(self, hosts: ListenHosts, ports: ListenPorts, grpc_tls: GrpcTls | None) -> ServerInstance:
        """Start the processes, which listen on these ports once they are ready."""
        if Path(self.repository.repository).is_relative_to(self.run_directory.path):
            publish(Path(self.repository.repository), {"metrics_port": ports.metrics, **self._digests()})
        key = secrets.token_hex(16)
        server = triton.server_command(
            self.installation,
            self.repository.repository,
            hosts=hosts,
            ports=ports,
            shm_prefix=self.run_directory.shm_prefix,
            admin_key=key,
            exit_seconds=_EXIT_TIMEOUT,
            grpc_tls=grpc_tls,
        )
        self.repository.clear_downloads()
        remove_shared_memory(self.run_directory.shm_prefix)  # a killed guard could not
        variables = {
            **triton.server_environment(self.installation),
            **self.repository.environment,
            **self.environment,
            **self.layout.variables(self.run_directory.path),
        }
        command = self.layout.command(server, self._follower_command)
        begins = log_size(self.run_directory.log)
        process = TritonProcess(command, variables, self.run_directory.log, self.run_directory.shm_prefix)
        metrics = (reachable(hosts.metrics), ports.metrics)
        probe = Probe(reachable(hosts.http), ports.http, key, self.engines.tasks, metrics)
        return ServerInstance(process, probe, self.run_directory.log, begins)

    def _digests(self) -> dict[str, Any]:
        """Return those of the engine that generates, and its adapters: they may be others than at the last start."""
        if (directory := self.engines.directories.get("generate")) is not None:
            with suppress(OSError):  # the server's own error says it better
                adapters = adapter_digests(self.adapters, self.engines.model_names["generate"])
                manifest = hashlib.sha256((directory / ENGINE_FILE).read_bytes()).hexdigest()
                return {"manifest_sha256": manifest, "adapters_sha256": adapters}
        return {}

    def _follower_command(self, rank: int) -> list[str]:
        # Each rank has its own shared memory; a prefix that begins with the server's is removed with it.
        return triton.follower_command(
            self.installation,
            self.repository.repository,
            model=ENGINE_MODEL,
            shm_prefix=f"{self.run_directory.shm_prefix}rank{rank}-",
            exit_seconds=_EXIT_TIMEOUT,
        )
