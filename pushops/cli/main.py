"""The ``pushops`` command. A noun's module is imported when the noun is used, so that help and errors come at once."""

from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from pushops.cli.exits import DOCUMENTED, Exit
from pushops.errors import PushopsError, SetupError

NOUNS: Final = {
    "adopt": "A subscriber table of yours gets a unique endpoint hash while it is written to: plan, run, finish.",
    "check": "Look at settings, database, broker and keys, and say what to do about each finding.",
    "config": "Print the settings in force and where each comes from; secrets are masked.",
    "dlq": "Dead letters: triage, list, show, export, replay, resend, discard, alarms.",
    "erasure": "Who asked to be forgotten, where that stands, and the receipts.",
    "explain": "Say what an answer of a push service means, and which row of the table says so.",
    "guard": "The guard against mass death: list, accept, reject.",
    "hold": "Holds on a host under one of our keys: list, release.",
    "keys": "Make seal, log and VAPID keys, and roll them.",
    "migrate": "Bring the database up to date.",
    "partition": "Partitions of the ledger and of tables of yours: list, plan, create, retire.",
    "payload": "The payload store: objects that no message names.",
    "provider": "Push services: list, pause, resume; keys and campaigns too.",
    "sandbox": "A PostgreSQL, a Valkey and a push service of one's own, for trying things out.",
    "stats": "How many left, and what told us so.",
    "sweep": "List, preview, run and pause sweeps; release what they set apart.",
    "run": "List, show, watch, pause, resume and cancel runs of sweeps.",
    "message": "Send messages, cancel them, and see what became of each recipient.",
    "subscription": "Show, list, import and bring back subscriptions; forget, hold or export a person.",
}


class Nouns(TyperGroup):
    """Stand-ins with names and help; the real command takes the place of the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401  (typer brings its own click or the installed one)
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in NOUNS else stand_in, rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  (the same)
        try:
            return super().invoke(ctx)
        except PushopsError as error:
            typer.echo(f"pushops: {error}{_hint(error)}", err=True)
            raise typer.Exit(Exit.FAILED) from None


def _hint(error: PushopsError) -> str:
    """What a missing table or schema usually means."""
    missing = isinstance(error, SetupError) and str(error).startswith(("42P01", "3F000"))
    return " (is the database migrated? pushops migrate)" if missing else ""


def load(noun: str) -> Any:  # noqa: ANN401  (the same)
    """The real command of a noun."""
    return typer.main.get_command(import_module(f"pushops.cli.{noun}").app)


app = typer.Typer(
    name="pushops",
    cls=Nouns,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=DOCUMENTED,
)


def _stand_in() -> None:
    """What is never called."""


for _noun, _help in NOUNS.items():
    app.command(_noun, help=_help)(_stand_in)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415  (slow, and only for this)

        typer.echo(f"pushops {version('pushops')}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Keeps a web-push subscriber table healthy. Settings: PUSHOPS_* and pushops.toml, see pushops config."""


def run() -> None:
    """The console script."""
    app()
