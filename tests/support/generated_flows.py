"""The module of generated flows, loaded as a worker loads it: both must know the same steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from locktender.testing.processes import source
from locktender.worker.executors.sources import load

STEPS_FILE = Path(__file__).parents[1] / "steps" / "generated_steps.py"
steps: Any = load(source(STEPS_FILE))
