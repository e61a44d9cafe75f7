"""Build steps of the site beyond its Markdown pages.

They add the version and the repository's address, the pictures of results/, a page for each
example, the public names of the API and equations as MathML. Browsers draw MathML themselves, so
the site needs no script for it, and nothing from the network.
"""

import ast
import html
import importlib
import inspect
import json
import os.path
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox as eqx
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

import notebook
import nres

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
MODULES = [
    "nres",
    "nres.callbacks",
    "nres.systems",
    "nres.systems.hyperparameters",
    "nres.systems.learned_optimizer",
    "nres.systems.recurrent",
    "nres.pools",
    "nres.lengths",
    "nres.measured",
    "nres.placement",
    "nres.noise",
    "nres.estimators",
    "nres.policies",
    "nres.variance",
    "nres.runs",
    "nres.checkpoint",
    "nres.figures",
    "nres.report",
    "nres.data",
]
WIDE = ("index.md", "gallery.md")  # pages whose sidebar would list nothing but themselves
# Browsers have no variants of letters, but special letters for them.
VARIANT = re.compile(r'(?<=<mi) mathvariant="(script|double-struck)">(\w)(?=</mi>)')
LETTERS = {"script": {"N": ">𝒩"}, "double-struck": {"E": ">𝔼", "R": ">ℝ"}}
LINK = re.compile(r"(!\[[^\]]*)?\]\((\.\./[^)#]+)\)")  # a picture, or the end of a link
MODULE = re.compile(r"\b(?:[a-zA-Z_]\w*\.)+(?=[a-zA-Z_])")
OBJECT = re.compile(r"<([\w.]+) object at 0x\w+>")
NAME = re.compile(r"^::: (nres\.[\w.]+)\n((?:    .*\n)*)", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Set the repository's address and the version, each of which is written in one place."""
    config.repo_url = REPOSITORY
    config.repo_name = REPOSITORY.removeprefix("https://github.com/")
    config.extra["release"] = nres.__version__
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each example, and the pictures that pages show."""
    for script in sorted((ROOT / "examples").glob("*.py")):
        text = example_page(script)
        files.append(File.generated(config, f"examples/{script.stem}.md", content=text))
    shown: set[str] = set()
    listed: list[str] = []
    for page in files.documentation_pages():
        listed += [name for name, _ in NAME.findall(page.content_string)]
        for picture, link in LINK.findall(page.content_string):
            target = in_repository(link, page.src_uri)
            if picture and target:
                shown.add(target)
    for target in sorted(shown):
        content = (ROOT / target).read_bytes()
        files.append(File.generated(config, target, content=content))
    check_names(listed)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Resolve public names, and links to files of the repository that are outside docs."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["navigation"]
    markdown = NAME.sub(documented, markdown)
    up = os.path.relpath(".", os.path.dirname(page.file.src_uri) or ".")

    def moved(found: re.Match) -> str:
        picture, link = found.groups()
        target = in_repository(link, page.file.src_uri)
        if target is None:
            return found[0]
        if not (ROOT / target).exists():
            raise ValueError(f"{page.file.src_uri} links to {target}, which does not exist.")
        if picture:
            return f"{picture}]({up}/{target})"
        example = re.fullmatch(r"(examples/\w+)\.(py|ipynb)", target)
        if example and not page.file.src_uri.startswith("examples/"):
            return f"]({up}/{example[1]}.md)"
        return f"]({REPOSITORY}/blob/main/{target})"

    return LINK.sub(moved, markdown)


def in_repository(link: str, page: str) -> str | None:
    """Return the path of a link's target in the repository, or `None` if it is in docs."""
    path = os.path.normpath(os.path.join("docs", os.path.dirname(page), link))
    return None if path.startswith("docs/") else path


def example_page(script: Path) -> str:
    """Return the page of an example: its text, its code, what it printed, and its pictures."""
    code, name = script.read_text(), script.stem
    saved = json.loads((ROOT / f"results/examples/{name}.json").read_text())["outputs"]
    source = f"[examples/{name}.py](../../examples/{name}.py)"
    parts = []
    if cells := notebook.split(code):
        source += f" · [examples/{name}.ipynb](../../examples/{name}.ipynb)"
        title = cells[0][1].partition("\n")[0].removeprefix("# ")
        outputs = iter(saved)
        for kind, text in cells:
            if kind == "markdown":
                parts.append(text)
            else:
                parts += [block("python", text), out(next(outputs), title)]
    else:
        title, _, rest = (ast.get_docstring(ast.parse(code)) or name).partition("\n")
        *_, code = code.split('"""', 2)
        title = title.rstrip(".")
        parts += [f"# {title}", rest.strip(), block("python", code.strip())]
        parts += [*(out(output, title) for output in saved), picture(f"{name}.png", title)]
    source += " · [all examples](../gallery.md)"
    return "\n\n".join(filter(None, [*parts, source])) + "\n"


def block(language: str, text: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def out(output: dict, title: str) -> str:
    """Return the output of a cell: a block of text and a picture, if there are any."""
    text = f"It prints:\n\n{block('text', output['text'])}" if output["text"] else ""
    drawn = output["picture"] and picture(output["picture"], title)
    return "\n\n".join(filter(None, [text, drawn]))


def picture(file: str, title: str) -> str:
    """Return a picture of an example, with the title of the example for those who cannot see it."""
    return f"![{title}](../../results/examples/{file}){{ width=480 }}"


def public_names(module: str) -> dict[str, Any]:
    """Return the public names of a module: its own, and those from the modules below it."""
    found = {}
    offered = importlib.import_module(module)
    for name in dir(offered):  # includes names that are imported on first use
        value = getattr(offered, name)
        home = getattr(value, "__module__", None) or module
        if name.startswith("_") or isinstance(value, ModuleType) or not home.startswith("nres"):
            continue
        if home == module or home.startswith(f"{module}."):
            found[name] = value
    return found


def check_names(listed: list[str]) -> None:
    """Fail unless the pages list every public function and class once, by its shortest path."""
    public: dict[int, str] = {}
    for module in MODULES:
        for name, value in public_names(module).items():
            if callable(value):
                public.setdefault(id(value), f"{module}.{name}")
    paths = set(public.values())
    if missing := sorted(paths - set(listed)):
        raise ValueError(f"No page of docs/api lists {', '.join(missing)}: add `::: {missing[0]}`.")
    if unknown := sorted(set(listed) - paths):
        raise ValueError(f"docs/api lists {', '.join(unknown)}, which nres does not offer.")
    if twice := sorted({name for name in listed if listed.count(name) > 1}):
        raise ValueError(f"docs/api lists {', '.join(twice)} more than once.")


def documented(found: re.Match) -> str:
    """Return the directive that documents a public name under its public path."""
    path, options = found.groups()
    module, _, name = path.rpartition(".")
    value = public_names(module)[name]
    if not (value.__doc__ or "").strip():
        raise ValueError(f"{path} has no docstring.")
    # By where it is defined: a function may have the same name as its module.
    target = f"{value.__module__}.{value.__qualname__}"
    options = options or "    options:\n"
    if isinstance(value, type) and (generated := signature(value)) is not None:
        options += f"      extra: {{signature: {json.dumps(generated)}}}\n"
    heading = f"      heading: {path}\n      toc_label: {name}\n"
    return f"[](){{#{path}}}\n\n::: {target}\n{options}{heading}"


def signature(class_: type) -> str | None:
    """Return the signature of a class; `None` if its source has it, empty if it has none."""
    if issubclass(class_, BaseException) or inspect.isabstract(class_):
        return ""
    if not issubclass(class_, eqx.Module):
        return None
    constructor = class_.__init__
    own = constructor.__qualname__ == f"{class_.__qualname__}.__init__"
    if own and constructor.__code__.co_filename.startswith(str(ROOT)):
        return None
    found = inspect.signature(class_).replace(return_annotation=inspect.Signature.empty)
    parts = [str(inspect.Signature([p])) for p in found.parameters.values()]
    keywords = [p.kind is inspect.Parameter.KEYWORD_ONLY for p in found.parameters.values()]
    listed = [part.removeprefix("(").removeprefix("*, ").removesuffix(")") for part in parts]
    if True in keywords:
        listed.insert(keywords.index(True), "*")
    listed = [MODULE.sub("", OBJECT.sub(r"\1()", part)) for part in listed]
    line = f"{class_.__name__}({', '.join(listed)})"
    if len(line) <= 88:
        return line
    return f"{class_.__name__}(\n" + "".join(f"    {part},\n" for part in listed) + ")"


def on_page_content(content: str, **_: Any) -> str:
    """Convert equations, as arithmatex marks them, to MathML."""

    def drawn(found: re.Match) -> str:
        inside = html.unescape(found[2])
        display = inside.startswith(r"\[")
        made = convert(inside[2:-2].strip(), display="block" if display else "inline")
        made = VARIANT.sub(lambda letter: LETTERS[letter[1]][letter[2]], made)
        return f'<div class="nres-equation">{made}</div>' if found[1] == "div" else made

    marked = r'<(span|div) class="arithmatex">(.*?)</\1>'
    return re.sub(marked, drawn, content, flags=re.DOTALL)
