"""The documents as their readers see them: blocks, inline code, links, anchors, command lines."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^( *)```([\w-]*)(?: ([\w-]+))?\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(
    r"(?:^|(?<=\n))\n((?: {4}(?! *(?:[-*]|\d+\.) )\S.*\n(?: {4}.*\n|\n(?= {4}))*))"
)
SPEAKERS = ("fleet", "node_plugin")
JOINT = re.compile(r'"\s+[rf]*"')
SHELL = frozenset({"", "sh", "bash", "shell", "console"})
PLACEHOLDER = re.compile(r"<[a-zA-Z][^<>|]*>")
SEPARATORS = frozenset({";", "|", "||", "&&", "&", "(", ")", ">", "2>", "<"})


@dataclass(frozen=True, slots=True)
class Line:
    """A command of a document: where, and its words."""

    page: str
    text: str
    words: tuple[str, ...]
    whole: bool
    """A line of a block, which can be typed as it stands; inline code may leave arguments out."""

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


@dataclass(frozen=True, slots=True)
class Typed:
    """A block of commands that says where it is typed."""

    page: str
    place: str
    """The second word of its fence: laptop, cluster, ..."""
    commands: tuple[str, ...]
    """As they are typed; a line that goes on is one."""
    output: str | None
    """What they print together, from the block of text right after; None where none is there."""

    @property
    def name(self) -> str:
        """For a person who looks for it."""
        return f"{self.page}: {self.commands[0]}"


def typed(page: str) -> list[Typed]:
    """The blocks of a page that say where they are typed, in order."""
    text = pages()[page]
    fences = list(FENCE.finditer(text))
    found = []
    for this, after in zip(fences, [*fences[1:], None], strict=True):
        if this[2] != "sh" or not this[3]:
            continue
        follows = after is not None and after[2] == "text"
        if after is not None and follows and text[this.end() : after.start()].strip():
            follows = False
        lines = re.sub(r"\\\n\s*", " ", dedent(this[4])).splitlines()
        commands = tuple(line for line in lines if line and not line.startswith("#"))
        output = dedent(after[4]) if after is not None and follows else None
        found.append(Typed(page, this[3], commands, output))
    return found


def exit_code(command: str) -> int:
    """With which code a command ends: 0 where its comment does not say otherwise."""
    said = re.search(r"#.*exit code (\d)", command)
    return int(said[1]) if said else 0


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with each placeholder (a word in capitals) that has a value replaced by it."""
    if not values:
        return text
    names = "|".join(sorted(values, key=len, reverse=True))
    return re.sub(rf"(?<![\w-])({names})(?![\w-])", lambda one: values[one[1]], text)


def differs(expected: str, printed: str) -> str:
    """The first line of `expected` that does not come in its turn in `printed`; "": all of it did.

    A line `...` stands for any lines, `...` in a line for any text; blanks count as one.
    """
    said = [" ".join(line.split()) for line in printed.splitlines() if line.strip()]
    place, free = 0, False
    for line in (" ".join(one.split()) for one in expected.splitlines()):
        if line == "...":
            free = True
            continue
        pattern = re.compile(".*".join(re.escape(one.strip()) for one in line.split("...")))
        found = next((n for n in range(place, len(said)) if pattern.fullmatch(said[n])), None)
        if found is None or (found > place and not free):
            return line
        place, free = found + 1, False
    return "" if free or place == len(said) else f"(and no more, but: {said[place]})"


@cache
def pages() -> dict[str, str]:
    """All documents by their path in the repository."""
    paths = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


@cache
def spoken() -> str:
    """The source of what talks to operators, neighbouring literals joined: what a page quotes is
    found in it, as long as nothing variable is in between."""
    paths = (path for package in SPEAKERS for path in (ROOT / package).rglob("*.py"))
    return JOINT.sub("", "\n".join(path.read_text() for path in paths))


@cache
def docstrings(path: Path) -> dict[str, str]:
    """Docstrings of the tests of a file, on one line each."""
    return {
        node.name: " ".join((ast.get_docstring(node) or "").split())
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of each fenced block, then of each indented one ("")."""
    for found in FENCE.finditer(text):
        yield found[2], found[4]
    for found in INDENTED.finditer(FENCE.sub("\n", text)):
        yield "", re.sub(r"^ {4}", "", found[1], flags=re.MULTILINE)


def inline(text: str) -> Iterator[str]:
    """Each piece of inline code, on one line."""
    rest = FENCE.sub("\n", text)
    for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", INDENTED.sub("\n", rest)):
        yield " ".join(found[1].replace(r"\|", "|").split())


def prose(text: str) -> str:
    """The text without code of any kind."""
    rest = INDENTED.sub("\n", FENCE.sub("\n", text))
    return re.sub(r"(?<!`)`[^`]+`(?!`)", "", rest)


def links(text: str) -> list[str]:
    """Targets of all links and pictures."""
    return re.findall(r"\]\(([^()\s]+)\)", prose(text))


def anchors(text: str) -> set[str]:
    """Names that a link into the page may use, as GitHub makes them from its headings."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", FENCE.sub("\n", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return names


def commands(program: str) -> list[Line]:
    """All lines in all documents that start this program."""
    found: list[Line] = []
    for page, text in pages().items():
        for language, content in blocks(text):
            if language in SHELL:
                for line in _logical(content):
                    found += _of(program, page, line, whole=True)
        for piece in inline(text):
            found += _of(program, page, piece, whole=False)
    return found


def _logical(content: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", " ", content)
    lines = [re.sub(r"^\$ ", "", line) for line in joined.splitlines()]
    return [line for line in lines if "() {" not in line]


def _of(program: str, page: str, line: str, *, whole: bool) -> Iterator[Line]:
    if program not in line:
        return
    for found in _simple(line):
        words = list(dropwhile(re.compile(r"[A-Z_]+=").match, found))
        if "--" in words and words[0] == "kubectl":
            del words[: words.index("--") + 1]
        if words and words[0].rpartition("/")[2] == program:
            yield Line(page, line, tuple(words[1:]), whole)


def _simple(line: str) -> list[list[str]]:
    """The simple commands of a shell line, each as words; [] for what is no shell."""
    bare = PLACEHOLDER.sub("PLACEHOLDER", line)
    lexer = shlex.shlex(bare, posix=True, punctuation_chars=";|&()<>")
    lexer.commenters = "#"
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word in SEPARATORS or set(word) <= set(";|&()<>"):
                found.append([])
            else:
                found[-1].append(word.removeprefix("[").removesuffix("]"))
    except ValueError:
        return []
    return [words for words in found if words]
