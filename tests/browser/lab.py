"""A real JupyterLab on a port of its own and a real Chromium that looks at it: what browser tests
and screenshots stand on.
"""

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
from typing import Any

import nbformat
from playwright.sync_api import Browser, Page, expect, sync_playwright

from course_lib.network.layout import reserve_ports

CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
# A test browser talks to nobody but JupyterLab; run as root it needs --no-sandbox.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NONE = "no Chromium is installed: apt install chromium"
SIZE = {"width": 1280, "height": 720}  # a projector
OWN = ("file:", "data:", "blob:", "http://127.0.0.1", "ws://127.0.0.1")  # addresses on this machine

# what is in the notebook that is seen, and not in one of a hidden tab
FRONT = ".jp-NotebookPanel:not(.lm-mod-hidden)"
CELLS = f"{FRONT} .jp-Notebook .jp-Cell"

# what stands in the log console, which is not opened, as it takes a part of the page
LOGGED = """async () => {
  const app = window.jupyterapp;
  const tokens = [...app.pluginRegistry._services.keys()];
  const wanted = tokens.find(({ name }) => name.endsWith(":ILoggerRegistry"));
  const loggers = (await app.resolveRequiredService(wanted)).getLoggers();
  return loggers.flatMap((one) => one.outputAreaModel.toJSON().map((said) => JSON.stringify(said)));
}"""


class Tab:
    """A page of a browser at a projector's size, what it asked for, and what went wrong in it.

    `look`: as Browser.new_page takes it.
    """

    def __init__(self, browser: Browser, **look: Any) -> None:
        self.page: Page = browser.new_page(**{"viewport": SIZE, **look})
        self.page.set_default_timeout(60_000)
        self.asked: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type == "error" else None,
        )

    def open(self, path: Path) -> Page:
        """Open a file."""
        self.page.goto(path.as_uri())
        return self.page

    def complaints(self) -> list[str]:
        """Errors, those on the console too, and requests that left the machine."""
        return self.errors + [url for url in self.asked if not url.startswith(OWN)]

    def close(self) -> None:
        """Raises AssertionError if there are complaints."""
        self.page.close()
        assert self.complaints() == []


class Lab(Tab):
    """A notebook in JupyterLab: opened, its kernel started, its first cell chosen."""

    def __init__(self, browser: Browser, address: str, **look: Any) -> None:
        super().__init__(browser, **look)
        self.page.goto(address)
        self.kernel("Idle")
        self.page.locator(CELLS).first.click()

    def kernel(self, state: str) -> None:
        """Wait until the kernel is `Idle` or `Busy`."""
        self.page.get_by_text(f"Python 3 (ipykernel) | {state}").wait_for()

    def run(self, cells: int = 1) -> None:
        """Run the chosen cell, and so many in all; the next one is chosen then.

        Waits until they are sent, not until they are done.
        """
        for _ in range(cells):
            cells = self.page.locator(CELLS)
            chosen = cells.evaluate_all("all => all.findIndex(c => c.matches('.jp-mod-active'))")
            self.page.keyboard.press("Shift+Enter")
            expect(cells.nth(chosen).locator(".jp-InputPrompt")).not_to_have_text("[ ]:")

    def save(self) -> None:
        """Save the notebook, and wait until it is in its file."""
        self.page.keyboard.press("Control+s")
        expect(self.page.locator(".jp-mod-dirty")).to_have_count(0)

    def theme(self, name: str) -> None:
        """Choose the theme `Light` or `Dark` in the menu."""
        self.page.get_by_role("menuitem", name="Settings", exact=True).click()
        for label in ("Theme", f"JupyterLab {name}"):
            self.page.locator(".lm-Menu-itemLabel").get_by_text(label, exact=True).click()
        chosen = f"body[data-jp-theme-name='JupyterLab {name}']"
        self.page.locator(chosen).wait_for(state="attached")

    def logged(self) -> list[str]:
        """What JupyterLab's log console would show. A reload of the page empties it."""
        return list(self.page.evaluate(LOGGED))

    def complaints(self) -> list[str]:
        """What went wrong in the page, and what stands in the log console."""
        return super().complaints() + self.logged()

    def choose(self, cell: int) -> None:
        """Choose a cell by its number, from 0."""
        self.page.locator(CELLS).nth(cell).locator(".jp-InputArea").click()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, ended afterwards."""
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS) as browser,
    ):
        yield browser


@contextlib.contextmanager
def opened(browser: Browser, folder: Path, *cells: str, **look: Any) -> Iterator[Lab]:
    """A notebook of these cells, open in a JupyterLab of its own that serves `folder`; nothing has
    run yet.
    """
    book = notebook(folder / "notebook.ipynb", *cells)
    with jupyter(folder) as address:
        lab = Lab(browser, f"{address}/lab/tree/{book.name}", **look)
        yield lab
        lab.page.close()


@contextlib.contextmanager
def jupyter(folder: Path) -> Iterator[str]:
    """JupyterLab serving `folder`; gives its address. Ends with all its kernels."""
    reserved = reserve_ports(["lab"])["lab"]
    port = str(reserved.getsockname()[1])
    reserved.close()
    config = folder / ".jupyter"  # nobody's own settings, and no question whether to fetch news
    quiet = config / "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    quiet.parent.mkdir(parents=True)
    quiet.write_text('{"fetchNews": "false"}')
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--allow-root",
            "--LabApp.expose_app_in_browser=True",
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
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in cells]
    )
    book.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(book, path)
    return path
