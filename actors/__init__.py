"""Ray, long-lived: one actor per node, one coordinator, and the way to reach them.

Importing this package decides that this process speaks to Ray with a token: Ray reads the mode
once, when it is imported itself, and its own default depends on the version and on $HOME. A mode
that is set already is left alone.
"""

from __future__ import annotations

import os

os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
