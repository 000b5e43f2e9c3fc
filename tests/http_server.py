"""A web server on this machine that serves a folder, and breaks in the ways that real ones do."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PIECE = 1 << 14


@dataclass
class Faults:
    """What goes wrong. Numbers are of answers with a body; all of them count down to none.

    Args:
        drop: so many answers are cut off by a reset connection after ``drop_after`` bytes of the body.
        drop_after: bytes of the body that come before that.
        end_early: so many answers end in the middle, orderly.
        busy: so many answers are ``busy_status``.
        busy_status: the status of these.
        retry_after: their ``Retry-After`` header.
        ranges: whether the server knows ranges.
        lengths: whether it says how long a file is.
        tags: whether it gives ETags.
        delay: seconds before each piece of a body.
        stuck: requests for paths that end so are answered 503, but for those of one byte.
    """

    drop: int = 0
    drop_after: int = 1000
    end_early: int = 0
    busy: int = 0
    busy_status: int = 503
    retry_after: str | None = None
    ranges: bool = True
    lengths: bool = True
    tags: bool = True
    delay: float = 0.0
    stuck: str | None = None


@dataclass
class WebServer:
    """A running server.

    Args:
        url: of the folder.
        faults: what goes wrong from now on.
        log: path and range of every request, in order.
    """

    url: str
    faults: Faults = field(default_factory=Faults)
    log: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, what: str) -> bool:
        """Whether a fault is due, counting it."""
        with self.lock:
            left = getattr(self.faults, what)
            setattr(self.faults, what, max(left - 1, 0))
            return bool(left)


@contextmanager
def serving(folder: Path) -> Iterator[WebServer]:
    """Serve a folder on a port of this machine until the context ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def answer(self, body: bool) -> None:
            faults = server.faults
            server.log.append((self.path, self.headers.get("Range", "")))
            path = folder / self.path.lstrip("/")
            if faults.stuck and self.path.endswith(faults.stuck) and server.log[-1][1] != "bytes=0-0":
                self.refuse(503)
                return
            if server.take("busy"):
                self.refuse(faults.busy_status, faults.retry_after)
                return
            if not path.is_file():
                self.refuse(404)
                return
            content = path.read_bytes()
            tag = f'"{hash(content) & 0xFFFFFFFF:x}"'
            first, last = 0, len(content) - 1
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            condition = self.headers.get("If-Range")
            partial = wanted is not None and faults.ranges and condition in (None, tag)
            if partial and wanted is not None:
                first = int(wanted[1])
                last = min(int(wanted[2] or last), last)
                if first > last:
                    self.refuse(416)
                    return
            self.send_response(206 if partial else 200)
            if partial:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            if faults.tags:
                self.send_header("ETag", tag)
            part = content[first : last + 1]
            if faults.lengths:
                self.send_header("Content-Length", str(len(part)))
            else:
                self.send_header("Connection", "close")
                self.close_connection = True
            self.end_headers()
            if body:
                self.send_body(part, faults)

        def send_body(self, part: bytes, faults: Faults) -> None:
            limit = len(part)
            if len(part) > faults.drop_after and (server.take("drop") or server.take("end_early")):
                limit = faults.drop_after
                self.close_connection = True
            for start in range(0, limit, PIECE):
                if faults.delay:
                    time.sleep(faults.delay)
                self.wfile.write(part[start : min(start + PIECE, limit)])
            self.wfile.flush()

        def refuse(self, status: int, retry_after: str | None = None) -> None:
            self.send_response(status)
            if retry_after is not None:
                self.send_header("Retry-After", retry_after)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: tests read what the server noted."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that goes away in the middle is nothing to report."""

    http = Server(("127.0.0.1", 0), Handler)
    server = WebServer(f"http://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
