"""A TCP proxy in front of servers: takes turns between them, and cuts connections where a test says so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


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
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Ends every connection that there is."""
        several, self._open = self._open, []
        for each in several:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        with suppress(OSError):
            self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

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
        threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
        last = ""
        with suppress(OSError):
            while data := client.recv(65_536):
                if data[:4] in (b"GET ", b"POST", b"PUT ", b"DELE"):
                    last = data.partition(b"\r\n")[0].decode()
                    self.requests.append(last)
                    self._current = last
                server.sendall(data)
        for each in (client, server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _pump(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65_536):
                with self._lock:
                    lost = self.lose > 0 and self.only in self._current
                    self.lose -= lost
                if lost:
                    break
                client.sendall(data)
        for each in (client, server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(*ports: int) -> Iterator[HttpProxy]:
    made = HttpProxy(list(ports))
    try:
        yield made
    finally:
        made.close()
