"""What the site needs beyond its pages: pictures of results/, and equations as MathML.

Browsers draw MathML themselves: no script, and nothing from the network.
"""

import html
import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
NAMES = re.compile(r"<!-- names ([\w.]+) -->")
# Browsers know no variants of letters, but letters of their own for them.
VARIANT = re.compile(r'(?<=<mi) mathvariant="(script|double-struck)">(\w)(?=</mi>)')
LETTERS = {"script": {"N": ">𝒩"}, "double-struck": {"E": ">𝔼", "R": ">ℝ"}}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(\.\./([^)#]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Pictures that pages show become files of the site."""
    shown: set[str] = set()
    for page in files.documentation_pages():
        for picture, _, target in LINK.findall(page.content_string):
            if picture:
                shown.add(target)
    for target in sorted(shown):
        content = (ROOT / target).read_bytes()
        files.append(File.generated(config, target, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """List public names; and show results, which lie beside docs in the repository."""
    seen: set[int] = set()  # what several modules offer is listed once
    markdown = NAMES.sub(lambda found: listed(found[1], seen), markdown)

    def moved(found: re.Match) -> str:
        picture, text, target = found.groups()
        if not (ROOT / target).exists():
            raise ValueError(f"there is no {target}.")
        # What is not shown stays in the repository, and is named.
        return f"![{text}]({target})" if picture else f"{text} (`{target}`)"

    return LINK.sub(moved, markdown)


def public_names(module: str) -> dict[str, Any]:
    """What a module offers: its own, and what it takes from the modules below it."""
    found = {}
    offered = importlib.import_module(module)
    for name in dir(offered):  # with names that are imported when they are first used
        value = getattr(offered, name)
        home = getattr(value, "__module__", None) or module
        if name.startswith("_") or isinstance(value, ModuleType) or not home.startswith("nres"):
            continue
        if home == module or home.startswith(f"{module}."):
            found[name] = value
    return found


def listed(module: str, seen: set[int]) -> str:
    """A place for the documentation of each public name, which has to have one."""
    lines = []
    for name, value in sorted(public_names(module).items(), key=lambda item: item[0].lower()):
        if not callable(value) or id(value) in seen:
            continue
        seen.add(id(value))
        if not (value.__doc__ or "").strip():
            raise ValueError(f"{module}.{name} has no docstring.")
        # From where it is defined: a function may be called like the module it is in.
        options = f"    options:\n      heading: {module}.{name}\n      toc_label: {name}"
        lines.append(f"::: {value.__module__}.{value.__qualname__}\n{options}")
    if not lines:
        raise ValueError(f"{module} has no public names.")
    return "\n\n".join(lines)


def on_page_content(content: str, **_: Any) -> str:
    """Equations, as arithmatex marks them."""

    def drawn(found: re.Match) -> str:
        inside = html.unescape(found[2])
        display = inside.startswith(r"\[")
        made = convert(inside[2:-2].strip(), display="block" if display else "inline")
        return VARIANT.sub(lambda letter: LETTERS[letter[1]][letter[2]], made)

    marked = r'<(span|div) class="arithmatex">(.*?)</\1>'
    return re.sub(marked, drawn, content, flags=re.DOTALL)
