"""`python -m tests.goldens`: write every golden anew; `git diff` then shows what has changed."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

from tests.goldens import FROZEN, recorded

logging.disable(logging.CRITICAL)
with tempfile.TemporaryDirectory() as scratch:
    written = recorded(Path(scratch))
shutil.rmtree(FROZEN, ignore_errors=True)
for name, content in written.items():
    path = FROZEN / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
