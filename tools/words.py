"""Check the texts of the project for mistakes that a program can see; `make lint` runs it.

python tools/words.py

Each mistake is printed as FILE:LINE: SENTENCE. The exit status is 1 if there are any. The rules:

- No docstring begins with What, How, Which, Where, Whether or Who.
- Help texts of the command line begin with a capital letter and end with a full stop.
- Relative links of Markdown pages lead to files and headings that exist.
- No text contains a phrase of `PHRASES`.
"""

import ast
import inspect
import pydoc
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

ROOT = Path(__file__).parent.parent
CODE = ("src", "benchmarks", "tools", "examples")
TEXTS = (*CODE, "tests", "docs", "results")
PAGES = ("*.md", "docs/**/*.md", ".github/**/*.md")
# These two files name the phrases that no other file may contain.
EXEMPT = ("tools/words.py", "tests/test_words.py")

CLAUSE = re.compile(r"(What|How|Which|Where|Whether|Who)\b")
RATE = r"\b(steps|updates|seconds|bytes|operations|evaluations) an? "
LABEL = r"\b(app_)?(sub)*((fig|sec|exp|thm|eq|alg|lemma|corollary|assumption):[a-z]|tab:\w+_)\w*"
PHRASES = {
    "as if nothing had been": 'say "exactly"',
    "made again": 'say "reproduced" or "repeated"',
    r"\bfor nothing\b": 'say "free"',
    "such as it were": "leave it out",
    RATE + r"(second|minute|hour|update|evaluation|checkpoint)\b": 'say "per" or "every"',
    LABEL: "name the figure, the table or the section of the paper",
}

LINK = re.compile(r"(?<!\\)\]\(\s*<?([^)\s>]+)>?[^)]*\)|\b(?:src|href)=\"([^\"]+)\"")
OWN = re.compile(r"https://(?:github\.com|raw\.githubusercontent\.com)/[^/]+/nres/(?:\w+/)?main/")
HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*$")
ANCHOR = re.compile(r"\{[^}]*#([\w.-]+)[^}]*\}|\b(?:id|name)=\"([^\"]+)\"|^::: ([\w.]+)")


class Mistake(NamedTuple):
    """A mistake: its file, its line, and a sentence about it."""

    file: str
    line: int
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.sentence}"


def docstrings(root: Path) -> Iterator[Mistake]:
    """Find docstrings that begin with a clause instead of a verb or a noun."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in _files(root, CODE, (".py",)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds) and (found := CLAUSE.match(ast.get_docstring(node) or "")):
                name = getattr(node, "name", "the module")
                sentence = f"the docstring of {name} begins with {found[1]!r}: use a verb or a noun"
                yield Mistake(_name(root, path), node.body[0].lineno, f"{sentence}.")


def help_texts(root: Path, command: Any, called: str = "nres") -> Iterator[Mistake]:
    """Find help texts of a click command and its subcommands that are not sentences."""
    place = _defined(root, command)
    described = {called: (command.help or "").split("\n\n")[0]}
    for parameter in command.params:
        name = max(parameter.opts, key=len)
        if not getattr(parameter, "hidden", False):
            described[f"{name} of {called}"] = getattr(parameter, "help", None) or ""
    for name, text in described.items():
        text = " ".join(text.split())
        if not text:
            yield Mistake(*place, f"{name} has no help text.")
        elif not text[0].isupper() or CLAUSE.match(text):
            yield Mistake(*place, f"begin the help text of {name} with a verb or noun: {text!r}.")
        elif not text.endswith("."):
            yield Mistake(*place, f"end the help text of {name} with a full stop: {text!r}.")
    if hasattr(command, "list_commands"):
        context = command.make_context(called, [], resilient_parsing=True)
        for name in command.list_commands(context):
            yield from help_texts(root, command.get_command(context, name), f"{called} {name}")


def links(root: Path) -> Iterator[Mistake]:
    """Find links and pictures of pages whose file or heading does not exist."""
    for path in sorted(page for pattern in PAGES for page in root.glob(pattern)):
        for number, line in _prose(path):
            for found in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
                target = found[1] or found[2]
                file, _, anchor = OWN.sub("/", target).partition("#")
                if re.match(r"\w+:", file):
                    continue
                base = root if file.startswith("/") else path.parent
                there = (base / unquote(file).lstrip("/")) if file else path
                if not there.exists():
                    sentence = f"the link {target} leads to a file that does not exist."
                    yield Mistake(_name(root, path), number, sentence)
                elif anchor and there.suffix == ".md" and not _has(there, anchor):
                    sentence = f"the link {target} leads to a heading that does not exist."
                    yield Mistake(_name(root, path), number, sentence)


def phrases(root: Path) -> Iterator[Mistake]:
    """Find phrases that are not plain English, and labels of the paper's source."""
    pages = [page for pattern in PAGES[:3] for page in root.glob(pattern)]
    suffixes = (".py", ".md", ".toml", ".html", "summary.json")
    for path in [*pages, *_files(root, TEXTS, suffixes)]:
        if _name(root, path) in EXEMPT:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for pattern, advice in PHRASES.items():
                if found := re.search(pattern, line, re.IGNORECASE):
                    sentence = f"do not write {found[0]!r}: {advice}."
                    yield Mistake(_name(root, path), number, sentence)


def _files(root: Path, folders: tuple[str, ...], suffixes: tuple[str, ...]) -> list[Path]:
    found = (path for folder in folders for path in (root / folder).rglob("*"))
    return sorted(path for path in found if path.is_file() and path.name.endswith(suffixes))


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _defined(root: Path, command: Any) -> tuple[str, int]:
    """Return the file and the line of the function behind a command."""
    function = inspect.unwrap(command.callback)
    file = Path(inspect.getsourcefile(function) or "")
    name = _name(root, file) if file.is_relative_to(root) else str(file)
    return name, function.__code__.co_firstlineno


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """Number the lines of a page, and leave out blocks of code."""
    fence = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence:
            yield number, line


def _has(page: Path, anchor: str) -> bool:
    """Check that a page has an anchor: a heading, an id, or an object that the site documents."""
    anchors: dict[str, int] = {}
    for _, line in _prose(page):
        for found in ANCHOR.finditer(line):
            anchors[next(filter(None, found.groups()))] = 0
        if heading := HEADING.match(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)|\{[^}]*\}", r"\1", heading[1])
            slug = re.sub(r"[^\w\s-]", "", text).strip().lower().replace(" ", "-")
            again = anchors[slug] = anchors.get(slug, -1) + 1
            anchors |= {f"{slug}-{again}": 0, f"{slug}_{again}": 0} if again else {}
    documented = anchor.startswith("nres.") and pydoc.locate(anchor) is not None
    return anchor in anchors or documented


def main() -> int:
    """Print all mistakes, and return the exit status."""
    import typer

    from nres.cli import app

    command = typer.main.get_command(app)
    mistakes = [*docstrings(ROOT), *help_texts(ROOT, command), *links(ROOT), *phrases(ROOT)]
    different = sorted(set(mistakes))
    for mistake in different:
        sys.stdout.write(f"{mistake}\n")
    sys.stdout.write(f"{len(different)} mistakes in texts.\n" if mistakes else "")
    return int(bool(mistakes))


if __name__ == "__main__":
    sys.exit(main())
