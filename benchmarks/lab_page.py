"""One notebook in JupyterLab in Chromium, and the panel in it, used as a user uses them.

    serve(folder) ─▶ browse() ─▶ LabPage(…) ─▶ run_all(), press("Run"), status

What goes wrong on a page is kept: errors on the console, errors nobody caught, requests that leave
this machine.  JupyterLab silently ignores "run" until the notebook's kernel has said what it is,
and calls itself idle between two cells.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.jupyter import LOOK_EVERY_S, PATIENCE_S, Server, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Route

SIZE = {"width": 1280, "height": 800}
ARGUMENTS = [
    "--no-sandbox",  # Chromium's own cannot be had by root, nor in most containers
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LOOPBACK = {"127.0.0.1", "localhost"}
# What JupyterLab 4.6 itself reports on the console, with any notebook.
KNOWN_NOISE = {
    # It asks a kernel that is just being restarted, and gets no answer.
    "Canceled future for debug_request",
    "Canceled future for kernel_info_request",
    "Canceled future for comm_info_request",
}

READY = """async () => {
    const app = window.jupyterapp;
    await app.restored;
    const notebook = app.shell.currentWidget;
    if (!notebook?.sessionContext) return false;
    await notebook.context.ready;
    await notebook.sessionContext.ready;
    await notebook.revealed;
    const kernel = notebook.sessionContext.session?.kernel;
    if (!kernel) return false;
    await kernel.info;
    return kernel.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
CELLS = """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
    .filter(cell => cell.type === 'code' && cell.sharedModel.source.trim())
    .map(cell => cell.executionCount)"""
RUN_CELLS = """async (texts) => {
    const app = window.jupyterapp, notebook = app.shell.currentWidget.content;
    for (const [index, cell] of [...notebook.model.cells].entries()) {
        const source = cell.sharedModel.source;
        if (cell.type !== 'code' || !texts.some(text => source.includes(text))) continue;
        notebook.deselectAll();
        notebook.activeCellIndex = index;
        await app.commands.execute('notebook:run-cell');
    }
}"""
COMMAND = "([name, options]) => window.jupyterapp.commands.execute(name, options)"


def why_no_browser() -> str:
    """Return what is missing for a browser test; '' where nothing is."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: pip install --editable '.[dev]'"
    if chromium() is None:
        return "there is no Chromium: apt-get install chromium"
    return ""


def chromium() -> str | None:
    """Find Debian's Chromium, or another's."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def browse() -> Iterator[Browser]:
    """Start Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=ARGUMENTS, timeout=1000 * PATIENCE_S
        )
        try:
            yield browser
        finally:
            browser.close()


class LabPage:
    """A notebook in a tab of its own.

    Args:
        browser: from `browse`.
        server: from `serve`.
        notebook: its stem, as ``02_prefetching``.
    """

    def __init__(self, browser: Browser, server: Server, notebook: str) -> None:
        self.server, self.notebook = server, notebook
        self.problems: list[str] = []
        """What went wrong on the page so far."""
        self.context = browser.new_context(viewport=SIZE, accept_downloads=True)
        self.context.set_default_timeout(1000 * PATIENCE_S)
        self.context.route("**/*", self._stay_here)
        self.page = self.context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        workspace = f"{notebook}-{time.monotonic_ns()}"
        path = f"lab/workspaces/{workspace}/tree/notebooks/{notebook}.ipynb"
        self.page.goto(f"{server.url}/{path}?token={server.mark}")
        self.wait_until_ready()

    def close(self) -> None:
        """Close the tab; its kernel stays, as a user's does."""
        self.context.close()

    def wait_until_ready(self) -> None:
        """Wait until "run" is heard."""
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")
        self.page.wait_for_function("() => window.jupyterapp")
        self.until(lambda: self.page.evaluate(READY), "the notebook's kernel is ready")

    def reload(self) -> None:
        """Reload the page, as a user does by F5."""
        self.page.reload()
        self.wait_until_ready()

    def command(self, name: str, **options: object) -> object:
        """Execute one of JupyterLab's commands and wait for its end."""
        return self.page.evaluate(COMMAND, [name, options])

    def run_all(self) -> None:
        """Run all cells and wait for the last."""
        self.command("notebook:run-all-cells")
        assert all(self.page.evaluate(CELLS)), f"some cells did not run: {self.complaints}"

    def run_cells(self, *texts: str) -> None:
        """Run the code cells that hold one of these texts, from top to bottom."""
        self.page.evaluate(RUN_CELLS, texts)

    def save(self) -> None:
        """Save the notebook, outputs and all."""
        self.command("docmanager:save")

    def restart_kernel(self) -> None:
        """Restart the kernel; outputs stay on the page."""
        self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        )
        self.until(lambda: self.page.evaluate(READY), "the kernel has restarted")

    def change_theme(self, name: str) -> None:
        """Choose a theme, as "JupyterLab Dark", and wait until it is there."""
        self.command("apputils:change-theme", theme=name)
        is_light = str("Dark" not in name).lower()
        body = f'body[data-jp-theme-light="{is_light}"]'
        self.page.wait_for_selector(body, state="attached")
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    @property
    def subshells(self) -> str:
        """Which of the page's messages to widgets do not wait for the kernel's main thread."""
        return self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
            ".commsOverSubshells"
        )

    # Of all that is read here the text content is asked for, not the inner text: of a cell that is
    # scrolled out of sight there is none.

    @property
    def complaints(self) -> list[str]:
        """What cells printed to stderr, and widgets that could not be shown."""
        stderr = self.page.locator('[data-mime-type="application/vnd.jupyter.stderr"]')
        broken = self.page.get_by_text("Error displaying widget")
        return stderr.all_text_contents() + broken.all_text_contents()

    @property
    def panel(self) -> Locator:
        """The panel; the last one, if there are more."""
        return self.page.locator(".labkit-panel").last

    @property
    def status(self) -> str:
        """What the panel says it is doing."""
        return self.panel.locator(".labkit-status").text_content().strip()

    @property
    def texts(self) -> list[str]:
        """What the panel says of what it does, and of what went wrong."""
        return self.panel.locator(".labkit-status, .labkit-error [role=alert]").all_text_contents()

    def field(self, label: str) -> Locator:
        """A control of the panel by its label."""
        return self.panel.get_by_label(label, exact=True)

    def press(self, name: str) -> None:
        """Click a button of the panel."""
        self.panel.get_by_role("button", name=name, exact=True).click()

    def type_into(self, label: str, value: object) -> None:
        """Type a value into a field and leave it."""
        self.field(label).fill(str(value))
        self.field(label).press("Tab")

    def wait_for_status(self, *beginnings: str) -> str:
        """Wait until the status begins with one of these words."""
        self.until(lambda: self.status.startswith(beginnings), f"the status is one of {beginnings}")
        return self.status

    def until(self, condition: Callable[[], object], what: object) -> None:
        """Wait for a condition, while the page goes on; what it should be is for the error.

        Raises:
            AssertionError: it did not come true.
        """
        # Asleep, Python would answer none of the page's requests.
        until(
            condition,
            lambda: f"{what}; the panel says {self.texts}",
            lambda: self.page.wait_for_timeout(1000 * LOOK_EVERY_S),
        )

    def _stay_here(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        if url.scheme in ("data", "blob") or url.hostname in LOOPBACK:
            route.fallback()
        else:
            self.problems.append(f"request to {url.hostname}: {route.request.url[:200]}")
            route.abort()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(text in message.text for text in KNOWN_NOISE):
            self.problems.append(f"console: {message.text} {message.location.get('url', '')}")
