"""Downloads with a window: a thousand files may be listed, three are fetched at a time.

    python examples/downloads_window.py
    locktender run examples/downloads_window.py:mirror --arg count=12

Needs no network: a small server in this process stands for the world outside.
"""

import functools
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from locktender import flow, step


class Files(BaseHTTPRequestHandler):
    """Serves some bytes under every name, slowly."""

    def do_GET(self) -> None:
        time.sleep(0.1)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode() * 100)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Quietly."""


@functools.cache
def server() -> str:
    """The address of the server, started on first use."""
    files = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=files.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{files.server_port}"


@step(retries=3, retry_delay="200ms", timeout="10s")
def download(name: str) -> int:
    with urllib.request.urlopen(f"{server()}/{name}") as answer:
        return len(answer.read())


@step
def report(sizes: list[int]) -> str:
    return f"{len(sizes)} files, {sum(sizes):,} bytes"


@flow
def mirror(count: int = 12) -> str:
    sizes = download.map([f"file-{number}.txt" for number in range(count)], window=3)
    return report(sizes)


if __name__ == "__main__":
    print(mirror.run())
