"""A server of Google Cloud Storage on loopback (gcp-storage-emulator), in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PROGRAM = """
import sys
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=sys.argv[1])
server.start()
print(server._api._httpd.socket.getsockname()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def gcs_server(bucket: str) -> Iterator[dict[str, str]]:
    """The variables of a process that uses it; `bucket` is there."""
    server = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, bucket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, "the GCS server did not start"
        yield {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
            # Else gcsfs asks Google for the kind of each bucket, which the emulator does not know.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(30)
        server.stdout.close()
