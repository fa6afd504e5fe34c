"""For all browser tests: one browser for the tests of a file."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.lab import CHROMIUM, NONE, chromium

# what is looked for has to come; how fast it comes is for the benchmarks
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Without a Chromium its tests are skipped, and say so; in continuous integration (CI=true),
    which installs one, they fail.
    """
    if CHROMIUM is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(NONE)
    with chromium() as browser:
        yield browser
