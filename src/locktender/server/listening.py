"""The socket that a server listens on, bound before anything else is started.

A port that is taken is then told at once, and not after a store was opened, a
worker has joined or a run has been started.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from locktender.base.errors import InvalidInput

BACKLOG = 64


def bind(host: str, port: int, *, option: str = "port") -> socket.socket:
    """A listening socket on `host`; port 0: any that is free. `option` is what the user calls the port."""
    family, address = _address(host, port, option)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # At once: two sockets may be bound to one port as long as neither listens.
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _refused(error, host, port, option) from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _address(host: str, port: int, option: str) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    if not 0 <= port <= 65_535:
        raise InvalidInput(
            "a port is a number from 0 to 65535.",
            field=option,
            got=port,
            hint="0 picks a free one.",
        )
    try:
        if not host.strip():
            raise OSError("no name")
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidInput(
            f"{host!r} is no address.",
            field=option.replace("port", "host"),
            got=host,
            hint="Use 127.0.0.1 for this machine alone, 0.0.0.0 for every address it has.",
        ) from error
    # `localhost` is often both: most clients try this one first.
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return found[0][0], found[0][4]


def _refused(error: OSError, host: str, port: int, option: str) -> InvalidInput:
    where = option.replace("port", "host")
    if error.errno == errno.EADDRINUSE:
        return InvalidInput(
            f"port {port} of {host} is in use.",
            field=option,
            got=port,
            hint=f"Name another, or --{option} 0 for any that is free.",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return InvalidInput(
            f"{host} is no address of this machine.", field=where, got=host, hint="Try: 127.0.0.1"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return InvalidInput(
            f"port {port} of {host} may not be opened by this user.",
            field=option,
            got=port,
            hint="Ports below 1024 are the system's: name a larger one.",
        )
    return InvalidInput(f"{host}:{port} cannot be opened: {error.strerror}.", field=option)
