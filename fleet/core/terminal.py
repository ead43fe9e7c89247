"""Words from outside on one line of a terminal or a log: what would act there is written out. Pure.

Process names, an operator's reasons, claim uids and errors are written by others. None of them may
move the cursor, forge a line or turn the reading order round.
"""

from __future__ import annotations

import re
import unicodedata

PLAIN = re.compile(r"[\x20-\x7e]*")
"""What shows itself and nothing else."""
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that act on a terminal or on the reader and show nothing themselves:
controls, formats (all that set the direction are among them), half characters, line separators."""


def visible(value: str) -> str:
    """`value` on one line, with what would act instead of show written out: ``\\x1b``, ``\\n``.

    Doing it twice changes nothing more.
    """
    if PLAIN.fullmatch(value):
        return value
    return "".join(_written(character) for character in value)


def _written(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN:
        return character
    return character.encode("unicode_escape").decode("ascii")
