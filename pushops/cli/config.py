"""``pushops config``."""

import typer

from pushops.cli.output import Json, print_json, print_table
from pushops.runtime import settings_or_sandbox
from pushops.settings import load_settings
from pushops.settings.origin import Shown, shown

app = typer.Typer()


@app.command()
def config(json_: Json = False) -> None:
    """Print the settings in force and where each comes from: environment, file, sandbox or default.

    Secrets are masked. Wrong settings are all listed at once.
    """
    found = shown(settings_or_sandbox(), load_settings())
    if json_:
        print_json(
            {each.name: {"value": each.value, "in_force": each.in_force, "from": each.came_from} for each in found}
        )
        return
    print_table(("SETTING", "FROM", "VALUE"), [(each.name, each.came_from, _value(each)) for each in found])


def _text(value: object) -> str:
    """Of a section all that it says, its words in quotes."""
    if not isinstance(value, dict):
        return str(value)
    return " ".join(f"{k}={str(v)!r}" if isinstance(v, str) else f"{k}={v}" for k, v in value.items())


def _value(each: Shown) -> str:
    if each.value is None or each.value == {}:
        return "not set"
    parts = each.value.items() if isinstance(each.value, dict) else ()
    text = ", ".join(f"{k}: {_text(v)}" for k, v in parts) or str(each.value)
    return text if each.in_force == each.value else f"{text}, {each.in_force} in force by the cadence"
