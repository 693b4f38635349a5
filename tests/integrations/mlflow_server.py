"""A real MLflow server on loopback, for tests that write to one."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from urllib.error import URLError

_HOPELESS = 600  # seconds; only a server that hangs takes as long, however busy the machine is


@contextmanager
def running_server(folder):
    """Its address, as soon as it answers; an error with its log if it ends before that."""
    uri = f"http://127.0.0.1:{(port := _free_port())}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'runs.db'}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", **quiet}
    log = folder / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, cwd=folder, env=environment
        )
    try:
        hopeless = time.monotonic() + _HOPELESS
        while not _answers(uri):
            assert process.poll() is None, f"the server ended: {log.read_text()}"
            assert time.monotonic() < hopeless, f"the server never answered: {log.read_text()}"
            time.sleep(0.2)
        yield uri
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(uri):
    """Whether the server and its database do what the tests ask for, not only that it runs."""
    request = urllib.request.Request(
        f"{uri}/api/2.0/mlflow/experiments/search",
        data=b'{"max_results": 1}',
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as reply:
            return reply.status == 200
    except (URLError, OSError):
        return False
