"""A TCP proxy in front of servers: takes turns between them, and cuts connections where a test says so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


class HttpProxy:
    """`lose`: so many answers are thrown away, after the server has made them, with their connection."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.lose = 0
        self.only = ""
        """Only answers to requests whose first line has this are lost."""
        self.requests: list[str] = []
        self._current = ""
        self._turn = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Ends every connection that there is."""
        several, self._open = self._open, []
        _shut(*several)

    def close(self) -> None:
        _shut(self._listener)
        self._listener.close()
        self.cut()
        for each in self._threads:
            each.join()

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        made = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(made)
        made.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            port = self.ports[self._turn % len(self.ports)]
            self._turn += 1
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError:
            client.close()
            return
        self._open += [client, server]
        pump = threading.Thread(target=self._pump, args=(server, client), daemon=True)
        pump.start()
        with suppress(OSError):
            while data := client.recv(65_536):
                if data[:4] in (b"GET ", b"POST", b"PUT ", b"DELE"):
                    self._current = data.partition(b"\r\n")[0].decode()
                    self.requests.append(self._current)
                server.sendall(data)
        _shut(client, server)
        pump.join()
        client.close()
        server.close()

    def _pump(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65_536):
                with self._lock:
                    lost = self.lose > 0 and self.only in self._current
                    self.lose -= lost
                if lost:
                    break
                client.sendall(data)
        _shut(client, server)


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(*ports: int) -> Iterator[HttpProxy]:
    made = HttpProxy(list(ports))
    try:
        yield made
    finally:
        made.close()
