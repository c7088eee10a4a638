"""Fetches scripts of others for the UI and its tests: by npm, with the versions and hashes of a lock file.

`python tools/vendor.py` fetches and checks; `--check` only checks what is there; `--lock` writes the hashes anew.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "tools" / "vendor.lock.json"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def unpacked(package: str, into: Path) -> Path:
    """The folder of one npm package, `name@version`."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("make vendor needs npm; nothing else does.")
    subprocess.run([npm, "pack", "--silent", package], cwd=into, check=True, capture_output=True)  # noqa: S603
    (archive,) = into.glob("*.tgz")
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    return into / "package"


SQUEEZE = """
const fs = require("fs"), zlib = require("zlib"), {BROTLI_PARAM_QUALITY: quality} = zlib.constants;
for (const file of process.argv.slice(1))
  fs.writeFileSync(file + ".br", zlib.brotliCompressSync(fs.readFileSync(file), {params: {[quality]: 11}}));
"""
"""Python's library has no brotli, which is a tenth smaller than gzip."""


def squeeze(files: list[Path]) -> None:
    node = shutil.which("node")
    if node is None:
        sys.exit("make vendor needs node, which npm comes with.")
    subprocess.run([node, "-e", SQUEEZE, *map(str, files)], check=True)  # noqa: S603


def fetch(lock: dict[str, Any]) -> None:
    squeezed: list[Path] = []
    for package, entry in lock.items():
        with tempfile.TemporaryDirectory() as scratch:
            source = unpacked(package, Path(scratch))
            for target, file in entry["files"].items():
                path = ROOT / target
                path.parent.mkdir(parents=True, exist_ok=True)
                if "from" in file:
                    shutil.copyfile(source / file["from"], path)
                    path.chmod(0o644)
                else:
                    squeezed.append(path.with_suffix(""))
    squeeze(squeezed)


def differing(lock: dict[str, Any]) -> list[str]:
    files = ((name, file) for entry in lock.values() for name, file in entry["files"].items())
    return [
        name
        for name, file in files
        if not (ROOT / name).exists() or digest(ROOT / name) != file["sha256"]
    ]


def main() -> None:
    lock: dict[str, Any] = json.loads(LOCK.read_text())
    if "--check" not in sys.argv:
        fetch(lock)
    if "--lock" in sys.argv:
        for entry in lock.values():
            for name, file in entry["files"].items():
                file["sha256"] = digest(ROOT / name)
        LOCK.write_text(json.dumps(lock, indent=2) + "\n")
    wrong = differing(lock)
    if wrong:
        sys.exit(f"not what tools/vendor.lock.json says: {', '.join(wrong)}")
    print(f"{sum(len(entry['files']) for entry in lock.values())} files are as the lock says")


if __name__ == "__main__":
    main()
