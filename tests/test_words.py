"""The check of texts: each rule finds a planted mistake, and accepts a right text."""

from pathlib import Path
from typing import Annotated

import pytest
import typer

ROOT = Path(__file__).parents[1]


@pytest.fixture
def words(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import words

    return words


def write(root, name, text):
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("word", ["What", "How", "Which", "Where", "Whether", "Who"])
def test_docstrings_begin_with_a_verb_or_a_noun(words, tmp_path, word):
    write(tmp_path, "src/a.py", f'"""{word} it does."""\n')
    source = f'class A:\n    """A class."""\n\n    def _b(self):\n        """{word} it does."""\n'
    write(tmp_path, "tools/b.py", source)
    write(tmp_path, "src/c.py", '"""Whatever is done here."""\n')
    write(tmp_path, "tests/d.py", f'"""{word} is outside."""\n')
    first, second = sorted(words.docstrings(tmp_path))
    assert str(first).startswith(f"src/a.py:1: the docstring of the module begins with {word!r}")
    assert str(second).startswith(f"tools/b.py:5: the docstring of _b begins with {word!r}")


def good(name: Annotated[str, typer.Option(help="Use this name.")] = "") -> None:
    """Print a name.

    and more about it
    """


def bad(
    first: Annotated[str, typer.Option(help="use this.")],
    second: Annotated[str, typer.Option(help="Use this")],
    third: Annotated[str, typer.Argument(help="Which to use.")],
    fourth: Annotated[str, typer.Option()],
    fifth: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Print more names"""


def test_help_texts_are_sentences(words):
    app = typer.Typer(help="Show names.")
    app.callback()(lambda: None)
    app.command()(good)
    app.command()(bad)
    found = list(words.help_texts(ROOT, typer.main.get_command(app), "names"))
    assert {mistake.file for mistake in found} == {"tests/test_words.py"}
    culprits = ("names bad", "--first", "--second", "third", "--fourth")
    for mistake, culprit in zip(found, culprits, strict=True):
        assert culprit in mistake.sentence


def test_links_lead_somewhere(words, tmp_path):
    write(tmp_path, "results/a.png", "")
    write(tmp_path, "docs/page.md", "# A page: of `this`\n\n## Twice\n\n## Twice\n\n## B {#own}\n")
    right = [
        "![picture](results/a.png)",
        "[page](docs/page.md#a-page-of-this)",
        "[second](docs/page.md#twice_1) [own](docs/page.md#own) [api](docs/page.md#nres.NRES)",
        "[here](#title) [there](https://example.com/x.md#y) `[code](nowhere.md)`",
        "[file](https://github.com/someone/nres/blob/main/docs/page.md)",
        '<img src="results/a.png" width="3">',
        "```\n[code](nowhere.md)\n```",
    ]
    write(tmp_path, "README.md", "# Title\n" + "\n".join(right))
    assert list(words.links(tmp_path)) == []
    wrong = [
        "![picture](a.png)",
        "[page](page.md#nowhere)",
        "[api](page.md#nres.Nothing)",
        "[here](#nowhere)",
        '<a href="../nowhere.md">x</a>',
        "[file](https://raw.githubusercontent.com/someone/nres/main/nowhere.png)",
    ]
    write(tmp_path, "docs/wrong.md", "\n".join(wrong))
    found = list(words.links(tmp_path))
    assert [(mistake.file, mistake.line) for mistake in found] == [
        ("docs/wrong.md", line) for line in range(1, len(wrong) + 1)
    ]
    for mistake, culprit in zip(found, ("a.png", "#nowhere", "#nres.Nothing"), strict=False):
        assert culprit in mistake.sentence


@pytest.mark.parametrize(
    "phrase",
    [
        "It resumes as if nothing had been.",
        "The paper, made again",
        "A rough measurement for nothing.",
        "W, steps an update.",
        "Updates an evaluation.",
        "Seconds a checkpoint.",
        "1,000 updates a second",
        "In the paper: app_fig:lorenz_loss_surface.",
        "section [exp:lopt], table [tab:lopt_hyperparameters]",
        "[app_subsec:hyperparameters]",
    ],
)
def test_phrases(words, tmp_path, phrase):
    write(tmp_path, "docs/a.md", f"# A page\n\n{phrase}\n")
    write(tmp_path, "results/b/summary.json", f'{{"remark": "{phrase}"}}\n')
    write(tmp_path, "README.md", "The steps of an update, a second time; `color='tab:blue'`.\n")
    found = list(words.phrases(tmp_path))
    assert {(mistake.file, mistake.line) for mistake in found} == {
        ("docs/a.md", 3),
        ("results/b/summary.json", 1),
    }
    assert all(mistake.sentence.startswith("do not write") for mistake in found)


def test_the_exit_status_says_whether_there_are_mistakes(words, monkeypatch, capsys):
    for name in ("docstrings", "help_texts", "links", "phrases"):
        monkeypatch.setattr(words, name, lambda *_: [])
    assert words.main() == 0
    monkeypatch.setattr(words, "links", lambda root: [words.Mistake("a.md", 3, "it is wrong.")])
    assert words.main() == 1
    assert capsys.readouterr().out.splitlines()[0] == "a.md:3: it is wrong."
