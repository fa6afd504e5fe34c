"""A real JupyterLab on a port of its own and a real Chromium that looks at it: what browser tests and screenshots stand on."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat

from course_lib.cluster import ports

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
# A test browser talks to nobody but JupyterLab; run as root it needs --no-sandbox.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def jupyter(folder: Path) -> Iterator[str]:
    """JupyterLab serving `folder`; gives its address. Ends with all its kernels."""
    (reserved,) = ports.reserve(1)
    port = ports.address(reserved).rpartition(":")[2]
    reserved.close()
    config = folder / ".jupyter"  # nobody's own settings
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--allow-root",
            f"--port={port}",
            "--IdentityProvider.token=",
            f"--notebook-dir={folder}",
        ],
        env={
            **os.environ,
            "JUPYTER_CONFIG_DIR": str(config),
            "JUPYTERLAB_SETTINGS_DIR": str(config),
            "JUPYTERLAB_WORKSPACES_DIR": str(config),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/api", server)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for(address: str, server: subprocess.Popen[bytes], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(address, timeout=1).read()
            return
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab does not answer at {address}")


def notebook(path: Path, *cells: str) -> Path:
    """Write a notebook of code cells."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, path)
    return path
