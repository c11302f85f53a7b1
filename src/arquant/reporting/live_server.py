"""A page on this machine that follows a run: read-only, reachable from this machine only, from the standard library."""

from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from arquant.base.errors import InputError
from arquant.reporting.live import live_content, live_page

HOST = "127.0.0.1"
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'"
)


class LiveServer(ThreadingHTTPServer):
    """Serves `/` (the page) and `/content` (its changing part); every other request is refused.

    Requests under another name than this machine's own are refused too: a foreign page that a browser has been tricked
    into asking here for would otherwise read the run.

    Args:
        port: 0 for one that is free.
        interval: seconds between two looks of a page.
    """

    daemon_threads = True

    def __init__(self, run: str | Path, port: int = 0, interval: float = 2.0) -> None:
        self.run, self.interval = run, interval
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise InputError(
                f"cannot serve on port {port}: {error.strerror}; choose another --port, or none"
            ) from error

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer

    def do_GET(self) -> None:
        """Answer with the page or with its changing part."""
        own = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in own:
            return self.send_error(403, "this page is for browsers of this machine")
        if self.path == "/":
            return self._answer(live_page(self.server.run, self.server.interval))
        if self.path == "/content":
            return self._answer(live_content(self.server.run))
        return self.send_error(404)

    def _answer(self, page: str) -> None:
        body = page.encode()
        self.send_response(200)
        for name, value in (
            ("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body))), ("Cache-Control", "no-store"),
            ("Content-Security-Policy", POLICY), ("X-Content-Type-Options", "nosniff"),
        ):  # fmt: skip
            self.send_header(name, value)
        with suppress(ConnectionError):  # a reader who has left
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: the terminal shows the address."""
