"""docs/http-api.md: every command of it is run, in its order, against `locktender dev`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.cli_harness import PATIENCE, interrupt, locktender, output_of, started, until

TEXT = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    code, client = blocks("python")
    (tmp_path / "shop.py").write_text(code)
    with started("dev", "shop.py", "--plain", "--port", "0", cwd=tmp_path) as dev:
        until(lambda: "/api/docs" in output_of(dev), "the address")
        [port] = re.findall(r"http://127.0.0.1:(\d+)/api", output_of(dev))
        typed = "set -euo pipefail\n" + "\n".join(blocks("sh")).replace("8470", port)
        done = subprocess.run(
            ["bash", "-c", typed], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr + done.stdout
        assert '"state":"succeeded","result":[9,9]' in done.stdout
        asked = subprocess.run(
            [sys.executable, "-c", client.replace("8470", port)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert asked.stdout.startswith("[9, 9]\nRunQueued\n"), asked.stderr
        # the wait that was listed had been answered by the topic, or takes its event when it comes to it
        until(lambda: output_of(dev).count("approve  succeeded") == 1, "the approval")
        interrupt(dev)
        assert dev.wait(timeout=110) == 130
    assert locktender("audit", cwd=tmp_path).code == 0
