"""Run the examples, and save their output and a picture of each in results/examples.

python tools/gallery.py [NAME ...]     # all, or some of them
python tools/gallery.py --check        # fail if the code of an example has changed since
"""

import ast
import contextlib
import hashlib
import io
import json
import sys
import tempfile
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import notebook
import nres
from nres.figures import line_style
from results import ROOT

EXAMPLES = ROOT / "examples"
SAVED = ROOT / "results/examples"
BEFORE, AFTER, TRUTH = "#7f7f7f", "#c8102e", "#0077bb"

Names = dict[str, Any]

plt.rcParams["legend.fontsize"] = "small"


def bouncer(panel: Axes, names: Names) -> None:
    """Train the ball, and draw its flight before and after."""
    system, key = names["Bouncer"](), jax.random.key(0)
    estimator = nres.NRES(system, workers=100, window=30, sigma=0.1)
    start = system.initial_theta(key)
    result = nres.train(estimator, optax.adam(0.03), start, updates=300, key=key)
    for theta, colour, label in ((start, BEFORE, "before"), (result.theta, AFTER, "after")):
        path = np.stack([state[0] for state in states(system, theta, key)])
        panel.plot(path[:, 0], path[:, 1], color=colour, label=label)
    panel.axvline(3.0, color=TRUTH, ls=":", label="target")
    panel.set(xlabel="distance", ylabel="height")


def states(system: nres.System, theta: Any, key: Any) -> list[Any]:
    """Return the states of one unroll."""
    state = system.init(theta, key)
    found = [state]
    step = jax.jit(lambda *arguments: system.step(*arguments))
    for t in range(system.horizon):
        state, _ = step(state, theta, jnp.asarray(t), jax.random.fold_in(key, t))
        found.append(state)
    return found


def batch_pool(panel: Axes, names: Names) -> None:
    """Draw the angles of some pendulums without and with feedback."""
    pool, keys = names["pool"], jax.random.split(jax.random.key(1), 8)
    for theta, colour, label in (
        (np.zeros(2), BEFORE, "without feedback"),
        (names["result"].theta, AFTER, "with learned gains"),
    ):
        thetas = jnp.broadcast_to(jnp.asarray(theta, jnp.float32), (1, len(keys), 2))
        state = pool.begin(None, thetas, keys, jnp.zeros(len(keys), int))
        angles = [state[0, :, 0]]
        for t in range(pool.horizon):
            state = pool.run(state, thetas, keys, jnp.full(len(keys), t), 1).state
            angles.append(state[0, :, 0])
        lines = panel.plot(np.stack(angles), color=colour, lw=1)
        lines[0].set_label(label)
    panel.set(xlabel="step", ylabel="angle", ylim=(-2, 2))


def meta_train(panel: Axes, names: Names) -> None:
    """Draw the loss of a model that Adam trains before and after its settings were learned."""
    system, key = names["system"], jax.random.key(1)
    for theta, colour, label in (
        (names["theta"], BEFORE, "Adam as it started"),
        (names["result"].theta, AFTER, "Adam with learned settings"),
    ):
        state, losses = system.init(theta, key), []
        step = jax.jit(lambda *arguments: system.step(*arguments))
        for t in range(system.horizon):
            state, loss = step(state, theta, jnp.asarray(t), jax.random.fold_in(key, t))
            losses.append(float(loss))
        panel.plot(losses, color=colour, label=label)
    panel.set(yscale="log", xlabel="step of training a model", ylabel="loss of the model")


def swimmer(panel: Axes, names: Names) -> None:
    """Draw the return of the perturbed policies during training."""
    history, horizon = names["result"].history, names["pool"].horizon
    panel.plot(history.update, -horizon * np.asarray(history.loss), color=AFTER)
    panel.set(xlabel="update", ylabel="return per episode")


def diagnose(panel: Axes, names: Names) -> None:
    """Draw the linear share on Lorenz against sigma."""
    rows = [(sigma, r.linear_share) for name, sigma, r in names["found"] if name == "Lorenz"]
    sigmas, shares = zip(*rows, strict=True)
    panel.plot(sigmas, np.maximum(shares, 1e-4), ".-", color=AFTER)
    panel.axhline(0.02, color=TRUTH, ls=":", label="too rough below")
    panel.set(xscale="log", yscale="log", xlabel="σ", ylabel="linear share")


def remember(panel: Axes, names: Names) -> None:
    """Draw the losses of NRES and truncated backpropagation."""
    for name, history in names["histories"].items():
        panel.plot(history.eval_update, history.evals["eval"], label=name, **line_style(name))
    panel.axhline(np.log(2), color=BEFORE, ls=":", label="guessing")
    panel.set(xlabel="update", ylabel="test loss")


def shop(panel: Axes, names: Names) -> None:
    """Draw the stock of the good in most demand before and after its orders were tuned."""
    pool, key = names["pool"], np.asarray(jax.random.key_data(jax.random.key(1)))[None]
    for theta, colour, label in (
        (names["theta"], BEFORE, "before"),
        (names["result"].theta, AFTER, "after"),
    ):
        state, stock = None, []
        for day in range(60):
            state = pool.advance(
                state, np.asarray(theta)[None, None], key, np.array([day]), 1
            ).state
            stock.append(state[0][0, 0, -1])
        panel.step(np.arange(60), stock, color=colour, label=label)
    panel.set(xlabel="day", ylabel="pieces in stock")


def identify(panel: Axes, names: Names) -> None:
    """Draw the recorded motion of the cart, and that of the model before and after the fit."""
    move, start, pushes = (names[name] for name in ("move", "START", "PUSHES"))
    seconds = 0.02 * np.arange(len(pushes))
    for theta, colour, label in (
        (names["theta"], BEFORE, "before"),
        (names["result"].theta, AFTER, "after"),
    ):
        run = lambda state, push, theta=theta: move(jnp.exp(theta), state, push)  # noqa: E731
        motion = jax.lax.scan(run, start, pushes)[1]
        panel.plot(seconds, motion[:, 0], color=colour, label=label)
    panel.plot(seconds, names["recorded"][:, 0], ":", color=TRUTH, label="recorded")
    panel.set(xlabel="seconds", ylabel="position of the cart")


DRAWINGS: dict[str, Callable[[Axes, Names], None]] = {
    drawing.__name__: drawing
    for drawing in (
        bouncer,
        batch_pool,
        meta_train,
        swimmer,
        diagnose,
        remember,
        shop,
        identify,
    )
}


def cells(name: str) -> list[str]:
    """Return the code of an example: cell by cell for a notebook, otherwise all of it."""
    script = (EXAMPLES / f"{name}.py").read_text()
    parts = notebook.split(script)
    return [text for kind, text in parts if kind == "code"] if parts else [script]


def digest(code: list[str]) -> str:
    """Return the hash of code without comments and docstrings, which do not change its output."""
    return hashlib.sha256("\n".join(map(_bare, code)).encode()).hexdigest()


def _bare(cell: str) -> str:
    """Return the lines of a cell without comments, docstrings and blank lines.

    The result is text of the cell itself: other versions of Python would print its syntax tree
    differently.
    """
    lines = cell.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(cell).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(cell)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            first, last = node.body[0].lineno, node.body[0].end_lineno or 0
            lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def run(name: str) -> None:
    """Run an example, and save what it prints and draws."""
    names: Names = {"__name__": "__main__"}
    code = cells(name)
    for old in SAVED.glob(f"{name}-*.png"):
        old.unlink()
    outputs = []
    # Files that it writes go to a folder of their own.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, cell in enumerate(code, 1):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(cell, name, "exec"), names)
            picture = f"{name}-{number}.png" if plt.get_fignums() else None
            if picture:
                save(plt.gcf(), SAVED / picture)
            outputs.append({"text": printed.getvalue(), "picture": picture})
    if name in DRAWINGS:
        figure, panel = plt.subplots(figsize=(4.8, 3.0), layout="constrained")
        DRAWINGS[name](panel, names)
        if panel.get_legend_handles_labels()[0]:
            panel.legend()
        save(figure, SAVED / f"{name}.png")
    saved = {"example": f"examples/{name}.py", "outputs": outputs, "code_sha256": digest(code)}
    (SAVED / f"{name}.json").write_text(json.dumps(saved, indent=1) + "\n")


def save(figure: Figure, file: Path) -> None:
    """Save a figure in the size of all pictures of examples."""
    figure.set_size_inches(4.8, 3.0)
    for panel in figure.axes:
        panel.grid(alpha=0.3)
    figure.savefig(file, dpi=180)
    plt.close(figure)


def check(name: str) -> None:
    """Fail if the saved output is not that of the example as it is now."""
    file = SAVED / f"{name}.json"
    if not file.exists() or json.loads(file.read_text())["code_sha256"] != digest(cells(name)):
        sys.exit(f"The saved output of examples/{name}.py is out of date: run tools/gallery.py.")


if __name__ == "__main__":
    asked = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = sys.argv[:1] + [a for a in sys.argv[1:] if a == "--check"]
    for name in asked or sorted(path.stem for path in Path(EXAMPLES).glob("*.py")):
        (check if "--check" in sys.argv else run)(name)
