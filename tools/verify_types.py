"""Is every public name fully typed? `pyright --verifytypes` on the package as it would be installed.

It sees no editable install, and only the dependencies that lie beside the
package: so a folder with a copy of it and a link to everything else installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CAUSED = "partially unknown"
"""Says only that something it mentions is at fault, which is listed itself."""


def installed(at: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "locktender", at / "locktender", ignore=ignored)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth" and entry.name not in ("locktender", "__pycache__"):
            (at / entry.name).symlink_to(entry)


def verified(at: Path) -> tuple[int, int, list[str]]:
    """How many public names have a known type, how many there are, what is wrong with the others."""
    pyright = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    ran = subprocess.run(  # noqa: S603
        [*pyright, "--verifytypes", "locktender", "--ignoreexternal"],
        env={**os.environ, "PYTHONPATH": str(at)},
        stdout=subprocess.PIPE,
        cwd=at,
        check=False,
    )
    report: dict[str, Any] = json.loads(ran.stdout)
    completeness: dict[str, Any] = report["typeCompleteness"]
    found = [
        line(symbol["name"], diagnostic, at)
        for symbol in completeness["symbols"]
        for diagnostic in symbol["diagnostics"]
        if diagnostic["severity"] == "error"
    ]
    found += [line("pyright", diagnostic, at) for diagnostic in report["generalDiagnostics"]]
    counts: dict[str, int] = completeness["exportedSymbolCounts"]
    known, every = counts["withKnownType"], sum(counts.values())
    return known, every, [said for said in found if CAUSED not in said] or found


def line(name: str, diagnostic: dict[str, Any], at: Path) -> str:
    file = Path(diagnostic.get("file") or at)
    where = Path("src") / file.relative_to(at) if file.is_relative_to(at) else file
    number = diagnostic.get("range", {}).get("start", {}).get("line", 0) + 1
    return f"{where}:{number}: {name}: {' '.join(diagnostic['message'].split())}"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder).resolve()
        installed(at)
        known, every, wrong = verified(at)
    for said in wrong:
        print(said)
    print(f"{known} of {every} public names have a known type")
    return int(bool(wrong) or known < every or not known)


if __name__ == "__main__":
    sys.exit(main())
