"""``pushops keys seal``: a new version, what is sealed with which, sealing anew, and letting an old one go."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from pushops.cli.context import actor, opened
from pushops.cli.exits import DOCUMENTED, Exit, exit_of
from pushops.cli.key_lines import print_lines
from pushops.cli.output import Json, duration, note, print_json, print_table, say
from pushops.cli.output import shown as number
from pushops.cli.progress import follow_run
from pushops.cli.run import Timeout, as_json, summary
from pushops.errors import BrokerError, RefusedError, SettingsError
from pushops.rolling import seal
from pushops.rolling.resealing import RESEAL_AUTH
from pushops.rolling.seal import SealUse
from pushops.runtime import Runtime, settings_or_sandbox
from pushops.settings import Settings
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.keys import generate_seal_key
from pushops.sweeps import service
from pushops.sweeps.dispatch import dispatch
from pushops.sweeps.inline import run_inline, watch
from pushops.sweeps.order import Order
from pushops.sweeps.preview import preview
from pushops.sweeps.store import RunRow

app = typer.Typer(no_args_is_help=True)

NO_BROKER: Final = (
    "expected PUSHOPS_BROKER_URL to be set, so that workers can be told; --inline runs it in this process instead"
)
NOTHING: Final = "every row is sealed with the current version"


@app.callback()
def seal_() -> None:
    """Roll the keys that seal auth secrets and payloads: add a version, seal everything with it, retire the old one."""


@app.command()
def add(json_: Json = False) -> None:
    """Print the settings lines with a new version of the seal key. The current one stays; nothing is stored."""
    settings = settings_or_sandbox()
    ring = keychain(settings).ring
    version = max(ring.versions) + 1
    lines = {
        "PUSHOPS_SEAL_KEYS": json.dumps({**_configured(settings), str(version): generate_seal_key()}),
        "PUSHOPS_SEAL_KEY_VERSION": str(ring.current),
    }
    print_lines(lines, {"added": version, "current": ring.current}, json_=json_)
    if not json_:
        _say_provider(settings)
        note(f"next: set these lines for every process; then PUSHOPS_SEAL_KEY_VERSION={version}; then keys seal roll")


@app.command("list")
def list_(json_: Json = False) -> None:
    """What is sealed with which version: rows with credentials, and the payloads of messages."""
    with opened() as rt:
        _show(seal.usage(rt), json_=json_)


@app.command(epilog=DOCUMENTED)
def roll(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count; nothing is changed.")] = False,
    inline: Annotated[bool, typer.Option("--inline", help="Run in this process, without a broker.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow what the workers do until all is sealed.")] = False,
    timeout: Timeout = None,
    json_: Json = False,
) -> None:
    """Seal every auth secret with the current version. Rows stay readable throughout; killed, it goes on later."""
    if inline and (wait or timeout):
        raise typer.BadParameter("--inline waits by itself, for as long as PUSHOPS_SWEEP_BUDGET_MS says")
    with opened() as rt:
        found = seal.usage(rt)
        if not json_:
            _show(found, json_=False)
            _hint(found)
        if dry_run:
            _preview(rt, found, json_=json_)
            return
        orders = seal.begin(rt, actor=actor())
        runs = [_roll_here(rt, order) for order in orders] if inline else _tell_workers(rt, orders)
        if wait:
            with follow_run() as told:
                runs = [watch(rt, run.run_id, told, timeout, give_up=rt.settings.sweep_max_lag_give_up) for run in runs]
        _finish(rt, runs, waited=inline or wait, json_=json_)


@app.command()
def retire(version: int, json_: Json = False) -> None:
    """Check that nothing needs a version any more, and print the settings lines without it; else say what does."""
    with opened() as rt:
        seal.retire(rt, version, actor=actor())
        settings = rt.settings
        current = keychain(settings).ring.current
    left = {name: key for name, key in _configured(settings).items() if int(name) != version}
    lines = {"PUSHOPS_SEAL_KEYS": json.dumps(left), "PUSHOPS_SEAL_KEY_VERSION": str(current)} if left else {}
    print_lines(lines, {"retired": version, "current": current}, json_=json_)
    if not json_:
        _say_provider(settings)
        note("keep the old key for as long as you keep backups: what they hold is sealed with it")


def _configured(settings: Settings) -> dict[str, str]:
    """The keys that the settings hold themselves; a provider's are no business of a settings line."""
    return {name: key.get_secret_value() for name, key in settings.seal_keys.items()}


def _say_provider(settings: Settings) -> None:
    if settings.key_provider is not None:
        note(f"keys that {settings.key_provider} gives are not shown: change them where it has them from")


def _show(found: Sequence[SealUse], *, json_: bool) -> None:
    if json_:
        print_json(found)
        return
    rows = [(use.version, use.rows if use.rows is not None else "many", use.messages, _words(use)) for use in found]
    print_table(("VERSION>", "ROWS>", "PAYLOADS>", "STATE"), rows)


def _words(use: SealUse) -> str:
    words = ["current" if use.current else "held" if use.held else "NOT HELD: put it back into PUSHOPS_SEAL_KEYS"]
    if use.apart:
        words.append(f"{use.apart:,} rows set apart")
    if not use.used and not use.current:
        words.append("not used")
    return ", ".join(words)


def _hint(found: Sequence[SealUse]) -> None:
    """A new key that is held and not current: what roll would do is not what its owner waits for."""
    current = next(use.version for use in found if use.current)
    newest = max(use.version for use in found if use.held)
    if newest > current:
        note(f"version {newest} is held and not current: PUSHOPS_SEAL_KEY_VERSION={newest}, everywhere, makes it so")


def _preview(rt: Runtime, found: Sequence[SealUse], *, json_: bool) -> None:
    """What each run would do: rows, pages, time, and the valves that would hold it."""
    orders = [Order(started_by=actor(), filter=turn.key()) for turn in seal.turns(rt)]
    previews = [(order.filter, preview(rt, RESEAL_AUTH, order)) for order in orders]
    if json_:
        print_json({"versions": found, "runs": [{"filter": turn, "preview": shown} for turn, shown in previews]})
        return
    for turn, shown in previews:
        eta = "" if shown.eta is None else f", about {duration(shown.eta)}"
        closed = "".join(f"; {r.valve} says {r.state}: {r.reason}" for r in shown.readings if not r.open)
        say(f"{turn}: {number(shown.eligible)} rows in {number(shown.batches)} batches{eta}{closed}")
    if not previews:
        say(NOTHING)


def _roll_here(rt: Runtime, order: Order) -> RunRow:
    with follow_run() as told:
        return run_inline(rt, {RESEAL_AUTH.name: RESEAL_AUTH}, RESEAL_AUTH, order, told)


def _tell_workers(rt: Runtime, orders: Sequence[Order]) -> list[RunRow]:
    if rt.settings.broker_url is None:
        raise SettingsError(NO_BROKER)
    from pushops.tasks import bell  # noqa: PLC0415  (Celery takes half a second to import, and only this needs it)

    ring = bell(rt)
    if orders and ring.depth() is None:
        raise BrokerError("expected the broker that PUSHOPS_BROKER_URL names to answer, it does not")
    found = [dispatch(rt, RESEAL_AUTH, ring, order).run for order in orders]
    if not all(found):
        raise RefusedError("expected to open the run, another dispatcher is at it: see pushops run list reseal-auth")
    return [run for run in found if run is not None]


def _finish(rt: Runtime, runs: Sequence[RunRow], *, waited: bool, json_: bool) -> None:
    done = [service.show_run(rt, run.run_id) for run in runs]
    code = max((exit_of(run) for run, _ in done), default=Exit.DONE) if waited else Exit.DONE
    if json_:
        state: dict[str, Any] = {"versions": seal.usage(rt), "runs": [as_json(*each) for each in done]}
        print_json({**state, "exit_code": int(code)})
    else:
        for each in done:
            say(summary(*each))
        if not done:
            say(NOTHING)
    if code is not Exit.DONE:
        raise typer.Exit(code)
