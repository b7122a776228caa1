"""A web server for one file on this machine alone, with the faults that networks have."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class FileServer:
    """What is served and how; `requests` tells which byte every request asked to begin at."""

    content: bytes
    etag: str = '"one"'
    takes_ranges: bool = True
    # How many bytes each connection in turn sends before it is cut; when they are used up, nothing is cut.
    cuts: list[int] = field(default_factory=list)
    status: int = 200
    has_length: bool = True
    requests: list[int] = field(default_factory=list)
    url: str = ""


def _handler(server: FileServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            server.requests.append(first)
            if server.status != 200:
                self.send_error(server.status)
                return
            # RFC 9110: a range of another version than If-Range names is not sent; the whole file is.
            is_part = bool(wanted) and server.takes_ranges and self.headers.get("If-Range") == server.etag
            first = first if is_part else 0
            if is_part and first >= len(server.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(server.content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if is_part else 200)
            self.send_header("ETag", server.etag)
            if server.has_length:
                self.send_header("Content-Length", str(len(server.content) - first))
            if is_part:
                self.send_header("Content-Range", f"bytes {first}-{len(server.content) - 1}/{len(server.content)}")
            self.end_headers()
            last = first + server.cuts.pop(0) if server.cuts else None
            self.wfile.write(server.content[first:last])
            self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler


@contextmanager
def serve(server: FileServer, name: str) -> Iterator[FileServer]:
    """Serve until the end of the block; `server.url` is the file's address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(server)) as listener:
        server.url = f"http://127.0.0.1:{listener.server_address[1]}/pub/{name}"
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()
