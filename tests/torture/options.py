"""Random and extreme command lines, for every command of `nres`."""

import shutil
from collections.abc import Iterator
from random import Random

from context import BOUNCER, Context, Ended, Failure, working

SECONDS = 90.0
# The share of tries in a separate process with an unusual environment.
ALONE = 0.06
LONGEST = 8
PLAIN = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
ENVIRONMENTS = [PLAIN, {"JAX_PLATFORMS": "nonsense"}, {"COLUMNS": "1"}, {"TERM": "dumb"}]
ENVIRONMENTS += [{"HOME": "/nonexistent", "XDG_STATE_HOME": "/proc/nowhere"}, {"COLUMNS": "x"}]
ENVIRONMENTS += [{"JAX_ENABLE_X64": "1"}, {"NO_COLOR": "1", "PYTHONWARNINGS": "error"}]

# Numbers that are wrong, or small enough to be harmless where they are right.
NUMBERS = ["0", "-1", "1", "2.5", "nan", "inf", "-inf", "1e400", "1e-400", "", " ", "x", "²", "٣"]
NUMBERS += ["2147483648", "9223372036854775808", "18446744073709551616", "1" + "0" * 40, "0x10"]
NUMBERS += ["1_000_000_000_000", "-9223372036854775809", "1" * 5000, "+3", "3 ", "1e3", "None"]
FLOATS = [
    "0.1",
    "1e-300",
    "1e300",
    "-0.0",
    "0.1,5:0.2",
    "0.1,5",
    "0.1,0:1",
    "0.1,9:1,3:2",
    ",",
    ":",
]
COSINES = ["cosine:0.1:0", "cosine:0.1:0:3", "cosine", "cosine:", "cosine:0:1", "cosine:1:nan"]
COSINES += ["cosine:1:0:0", "cosine:1:0:" + "9" * 30, "cosine:1e400:0", "cosine:1:0:²", "warmup:1"]
TEXTS = ["", " ", "ü☃", "[/x]", "[bold]x", "\x1b[31mx", "a\nb", "..", "/dev/null", "/proc/x", "~"]
TEXTS += [
    "x" * 300,
    "-",
    "--",
    "a:b",
    "http://x",
    "a/b/c",
    "%s{}",
    "\u202e",
    "\udcff",
    "nul\\x",
    "'",
]
PATHS = [*TEXTS, "fresh", "new/er", "x.png", "x.npz", "x.gif", "x.html", "x.pdf", "x.svg", ".png"]
PATHS += ["x.mp4"]
SETS = ["horizon=-1", "horizon=1e9", "horizon=abc", "horizon=", "=1", "horizon", "horizon=12.5"]
SETS += ["test_episodes=0", "nonsense=1", "horizon=null", "horizon=[1]", "horizon=" + "9" * 30]
SETS += ["horizon=NaN", "horizon=1e999", 'horizon="40"', "horizon=" + "[" * 5000, "horizon=true"]
SETS += ["horizon=" + "1" * 5000, "self=1", "__class__=1", "horizon=\udcff"]
SYSTEMS = ["lorenz", "Lorenz", "nonsense", "", "file.py:X", "json:JSONDecoder", ":", "x:", "gym:x"]
SYSTEMS += [
    "gym:",
    "os:system",
    "nres:System",
    "nres.systems:Lorenz",
    "/dev/null:X",
    "[/x]",
    "a.b:c",
]
SYSTEMS += [
    "{bouncer}",
    "{folder}:X",
    "{folder}",
    "hopper",
    "learned-optimizer",
    "ü:ü",
    "/dev/zero:X",
]
METHODS = [
    "nres",
    "NRES",
    "pes",
    "gpes",
    "tes",
    "fulles",
    "bptt",
    "tbptt",
    "dodge",
    "uoro",
    "x",
    "",
]
METHODS += ["nres,pes", "nres,nres", ",", "nres,,pes", "[/x]"]
RUNS = ["{run}", "nowhere", "", "/", "/dev/null", "[/x]", "{folder}", "ü", "\udcff", "x" * 300]
POLICIES = [
    "linear",
    "mlp:0",
    "mlp:99999999",
    "mlp:",
    "mlp:-1",
    "mlp:2:relu",
    "mlp:2:x",
    "x",
    "mlp:a",
]
POLICIES += ["mlp:" + "9" * 5000, "mlp:2,2,2", "mlp:2,", "mlp:1.5", ""]
OPTIMIZERS = ["sgd", "adam", "Adam", "x", "", "adamw", "lbfgs"]
LISTS = [
    "10",
    "10,40",
    "0",
    "-1",
    "x",
    ",",
    "10,,40",
    "1e2",
    "",
    "7",
    "1" * 5000,
    "nan",
    "40,10,10",
]
IDS = ["lorenz-surface", "nonsense", "table", "", "[/x]", "LORENZ-ES", "../x"]
WORKERS = [*NUMBERS, "100000000"]

RUN = [RUNS]
SMALL = ["--set", "horizon=40"]
COMMANDS = {
    "train": (
        [SYSTEMS],
        [*SMALL, "--window", "10", "--updates", "2", "--workers", "4"],
        {
            "--method": METHODS,
            "--auto": None,
            "--total-steps": NUMBERS,
            "--seconds": NUMBERS,
            "--workers": WORKERS,
            "--window": NUMBERS,
            "--sigma": NUMBERS + FLOATS,
            "--period": NUMBERS,
            "--noise": ["gaussian", "orthogonal", *TEXTS],
            "--phases": ["even", "independent", *TEXTS],
            "--optimizer": OPTIMIZERS,
            "--lr": NUMBERS + FLOATS + COSINES,
            "--warmup": NUMBERS,
            "--clip": NUMBERS + FLOATS,
            "--stop-after": NUMBERS,
            "--config": [*RUNS, *PATHS, "x.yaml", "x.toml", "/dev/zero.json"],
            "--updates": NUMBERS,
            "--seed": NUMBERS,
            "--seeds": ["0", "-1", "x", "2", "1" + "0" * 40, "nan"],
            "--start-seed": NUMBERS,
            "--from": RUNS,
            "--out": PATHS,
            "--eval-every": NUMBERS,
            "--log-every": NUMBERS,
            "--checkpoint-every": NUMBERS,
            "--checkpoint-seconds": NUMBERS + FLOATS,
            "--keep-every": NUMBERS,
            "--devices": [*NUMBERS, "all"],
            "--actors": NUMBERS,
            "--policy": POLICIES,
            "--data-dir": PATHS,
            "--set": SETS,
            "--num-processes": ["0", "-1", "x"],
            "--ray": ["", "x y"],
            "--allow-stale": None,
            "--tensorboard": None,
            "--quiet": None,
        },
    ),
    "compare": (
        [SYSTEMS],
        [
            "--set",
            "horizon=100",
            "--methods",
            "nres",
            "--seeds",
            "1",
            "--updates",
            "2",
            "--workers",
            "4",
        ],
        {
            "--methods": METHODS,
            "--seeds": ["0", "-1", "x", "2", "1" + "0" * 40, "nan"],
            "--updates": NUMBERS,
            "--budget-steps": ["0", "-1", "nan", "inf", "1e400", "x", "1e-400", "1000"],
            "--budget-seconds": ["0", "-1", "nan", "1e-300", "x", "0.01"],
            "--workers": WORKERS,
            "--sigma": NUMBERS + FLOATS,
            "--optimizer": OPTIMIZERS,
            "--lr": NUMBERS + FLOATS + COSINES,
            "--warmup": NUMBERS,
            "--clip": NUMBERS + FLOATS,
            "--level": NUMBERS,
            "--out": PATHS,
            "--set": SETS,
            "--quiet": None,
        },
    ),
    "variance": (
        [SYSTEMS],
        [*SMALL, "--window", "10", "--samples", "8", "--periods", "10"],
        {
            "--periods": LISTS,
            "--window": NUMBERS,
            "--sigma": NUMBERS + FLOATS,
            "--checkpoints": RUNS,
            "--samples": NUMBERS,
            "--seed": NUMBERS,
            "--out": PATHS,
            "--set": SETS,
            "--policy": POLICIES,
        },
    ),
    "advise": (
        [SYSTEMS],
        [*SMALL, "--total-steps", "1e5", "--sequential-steps", "1e3"],
        {
            "--total-steps": NUMBERS,
            "--sequential-steps": NUMBERS,
            "--run": RUNS,
            "--seed": NUMBERS,
            "--out": PATHS,
            "--set": SETS,
        },
    ),
    "resume": (
        RUN,
        [],
        {
            "--updates": NUMBERS,
            "--devices": NUMBERS,
            "--actors": NUMBERS,
            "--ray": ["none", "", "x y"],
            "--stop-after": NUMBERS,
            "--fresh-episodes": None,
            "--trust-code": None,
            "--tensorboard": None,
            "--quiet": None,
        },
    ),
    "evaluate": (RUN, [], {"--episodes": NUMBERS, "--seed": NUMBERS, "--best": None}),
    "show": (RUN, [], {}),
    "plot": (RUN, [], {"--out": PATHS}),
    "report": (RUN, [], {"--out": PATHS, "--title": TEXTS}),
    "render": (
        RUN,
        [],
        {
            "--out": PATHS,
            "--steps": NUMBERS,
            "--every": NUMBERS,
            "--size": ["8x8", "9x9", "0x8", "x", "8x", "8x8x8", "8X8", "²x8", "1e1x8", *NUMBERS],
            "--seed": NUMBERS,
            "--best": None,
        },
    ),
    "export": (RUN, [], {"--out": PATHS, "--best": None}),
    "reproduce": (
        [IDS],
        ["--quick"],
        {"--tier": ["cpu", "gpu", "x", ""], "--seeds": ["0", "-1", "x", "1"], "--out": PATHS},
    ),
    "list": ([], [], {"--nonsense": TEXTS}),
    "data": (
        [],
        [],
        {"--download": [*TEXTS, "x"], "--data-dir": PATHS, "--url": ["", "x", "[/x]"]},
    ),
    "nonsense": ([], [], {"--x": TEXTS}),
}
# Commands with many options are called more often.
WEIGHTS = [1 + len(options) for _, _, options in COMMANDS.values()]


def attack(context: Context) -> Iterator[Failure | None]:
    """Call one command after another with unlikely options."""
    run = context.folder / "run"
    places = {"{run}": str(run), "{folder}": str(context.folder), "{bouncer}": BOUNCER}
    with working(context, SECONDS) as worker:
        while True:
            # A fresh copy, so that a command cannot affect the next one.
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(context.complete.path, run)
            arguments = [places.get(a, a) for a in drawn(context.random)]
            environment = {}
            if context.random.random() < ALONE:
                environment = context.random.choice(ENVIRONMENTS)
                ended = context.run(arguments, SECONDS, **environment)
            else:
                answer = worker(arguments=arguments, environment={})
                ended = Ended(answer["code"], answer.get("output", ""), answer.get("errors", ""))
            complaint = ended.complaint()
            if complaint is None and len(ended.errors.strip().splitlines()) > LONGEST:
                complaint = f"{len(ended.errors.splitlines())} lines of errors: {ended.errors}"
            call = f"{environment or ''} nres {arguments!r}"
            yield None if complaint is None else Failure(call, complaint)


def drawn(chance: Random) -> list[str]:
    """Draw a good command line with a few of its parts replaced."""
    name = chance.choices(list(COMMANDS), WEIGHTS)[0]
    positions, options, odd = COMMANDS[name]
    words = [name]
    for choices in positions:
        words.append(chance.choice(choices) if chance.random() < 0.2 else choices[0])
    words += options
    for option in chance.sample(list(odd), min(len(odd), chance.choice([0, 1, 1, 2, 3]))):
        values = odd[option]
        words += [option] if values is None else [option, chance.choice(values)]
    return words
