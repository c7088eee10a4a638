"""An S3 server on loopback (moto), in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PROGRAM = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def s3_server(bucket: str) -> Iterator[dict[str, str]]:
    """The variables of a process that uses it; `bucket` is there."""
    server = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, "the S3 server did not start"
        variables = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        make = "import fsspec, sys; fsspec.filesystem('s3').mkdir(sys.argv[1])"
        subprocess.run(
            [sys.executable, "-c", make, bucket], env={**os.environ, **variables}, check=True
        )
        yield variables
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(30)
        server.stdout.close()
