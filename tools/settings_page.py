"""Generate the table of settings in docs/runs.md from their declarations."""

from nres.cli.options import setting_option
from nres.runs.settings import DECLARATIONS


def settings() -> str:
    """List the settings that are options of `nres train`, grouped as in its help."""
    lines = ["| option | effect | default |", "| --- | --- | --- |"]
    panel = ""
    for name, declared in DECLARATIONS.items():
        if "train" not in declared.commands:
            continue
        if declared.panel != panel:
            panel = declared.panel
            lines.append(f"| **{panel}** | | |")
        option = setting_option(name)
        default = declared.default_text or ("off" if option.default is False else option.default)
        flag = option.annotation.__metadata__[0].default
        lines.append(f"| `{flag}` | {declared.help} | {default} |")
    return "\n" + "\n".join(lines) + "\n"


PARTS = (settings,)
