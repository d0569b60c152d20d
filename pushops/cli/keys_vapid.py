"""``pushops keys vapid``: a new pair, one more beside those in use, what a rotation takes, and letting a key go."""

import json
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from pushops.cli.context import STDIN, actor, opened
from pushops.cli.key_lines import print_lines
from pushops.cli.output import Json, note, print_json, print_table, say
from pushops.errors import RefusedError
from pushops.rolling import vapid
from pushops.rolling.vapid import VapidKeyUse
from pushops.runtime import settings_or_sandbox
from pushops.settings import Settings
from pushops.settings.values import looks_like_key
from pushops.subscriptions.keychain import Keychain, keychain
from pushops.subscriptions.keys import VapidKey, generate_vapid_key, load_vapid_key

app = typer.Typer(no_args_is_help=True)

LARGEST: Final = 16 * 1024  # a key file has under a thousand bytes


@app.callback()
def vapid_() -> None:
    """Make and rotate VAPID keys. A subscription is bound to its key: rotating one asks its browsers to come anew."""


@app.command()
def generate(
    key_id: Annotated[str, typer.Option("--id", help="The id that the key is to have.")] = "1", json_: Json = False
) -> None:
    """Print a new key pair as settings lines of its own. Nothing is stored: keep it yourself."""
    made = generate_vapid_key()
    lines = {
        "PUSHOPS_VAPID_KEYS": json.dumps({_checked(key_id): made.private_text}),
        "PUSHOPS_VAPID_KEY_ID": key_id,
    }
    print_lines(lines, {"vapid_public_key": made.public_text}, json_=json_)
    if not json_:
        _say_public(made)


@app.command()
def add(
    key_id: Annotated[
        str | None, typer.Option("--id", help="The id that the key is to have; else the next number.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            help="A key that you have (PEM, DER, base64, hex, JWK, or web-push's JSON), - for stdin; else a new one.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Print the settings lines with one more VAPID key, new or yours. The current one stays; nothing is stored."""
    settings = settings_or_sandbox()
    chain = keychain(settings)
    added = generate_vapid_key() if file is None else _read(file)
    name = _free_id(chain, added, key_id)
    lines = {"PUSHOPS_VAPID_KEYS": json.dumps({**_configured(settings), name: added.private_text})}
    if chain.vapid_id is not None:
        lines["PUSHOPS_VAPID_KEY_ID"] = chain.vapid_id
    beside = {"added": name, "current": chain.vapid_id, "vapid_public_key": added.public_text}
    print_lines(lines, beside, json_=json_)
    if not json_:
        _say_provider(settings)
        _say_public(added)
        note(
            f"next: set these lines for every process; then PUSHOPS_VAPID_KEY_ID={name}, and give browsers the new key"
        )


@app.command()
def plan(
    to: Annotated[str | None, typer.Option("--to", help="The id of the key to move to; else the current one.")] = None,
    json_: Json = False,
) -> None:
    """How many subscriptions each key has, and who must subscribe again to move to one. Nothing is changed."""
    with opened() as rt:
        found = vapid.plan(rt, to)
    if json_:
        print_json(found)
        return
    rows = [(use.id or "-", use.rows, use.live, use.assumed, use.seen, _words(use)) for use in found.keys]
    print_table(("KEY", "ROWS>", "LIVE>", "ASSUMED>", "SEEN 30D>", "STATE"), rows)
    if found.target is not None:
        say(
            f"to move everybody to key {found.target!r}, {found.must_resubscribe:,} browser(s) must subscribe again;"
            f" {found.seen:,} of them were in touch within 30 days"
        )


@app.command()
def retire(
    key_id: Annotated[str, typer.Argument(metavar="ID")],
    force: Annotated[bool, typer.Option("--force", help="Although subscriptions are under it.")] = False,
    json_: Json = False,
) -> None:
    """Print the settings lines without a VAPID key. Refused while subscriptions are under it, unless it is forced."""
    with opened() as rt:
        use = vapid.retire(rt, key_id, actor=actor(), force=force)
        settings = rt.settings
        current = keychain(settings).vapid_id
    left = {name: key for name, key in _configured(settings).items() if name != key_id}
    lines = {"PUSHOPS_VAPID_KEYS": json.dumps(left), "PUSHOPS_VAPID_KEY_ID": str(current)} if left else {}
    print_lines(lines, {"retired": use, "must_resubscribe": use.rows}, json_=json_)
    if not json_:
        _say_provider(settings)
        if use.rows:
            note(f"{use.rows:,} browser(s) must subscribe again, and are told so at their next contact; until then")
            note("what is sent to them is held; putting the key back sends it")


def _checked(key_id: str) -> str:
    """An id that is no key: a slip would print a secret wherever ids are shown."""
    if not key_id.isprintable() or not key_id.strip() or looks_like_key(key_id):
        raise typer.BadParameter("expected an id such as 2 or 2026-03, got one that is empty or looks like a key")
    return key_id


def _free_id(chain: Keychain, added: VapidKey, key_id: str | None) -> str:
    """Raises RefusedError where the key or its id is there already."""
    known = chain.vapid_id_of(added.public)
    if known is not None:
        raise RefusedError(f"expected another VAPID key, got the one that has the id {known!r} already")
    if key_id is None:
        return str(max((int(name) for name in chain.vapid if name.isdecimal()), default=len(chain.vapid)) + 1)
    if key_id in chain.vapid:
        raise RefusedError(f"expected an id that no VAPID key has ({', '.join(chain.vapid)} do), got {key_id!r}")
    return _checked(key_id)


def _read(file: Path) -> VapidKey:
    """Raises RefusedError that says what was expected, and shows nothing of the file."""
    try:
        if str(file) == STDIN:
            raw = sys.stdin.buffer.read(LARGEST)
        else:
            with file.open("rb") as opened_file:
                raw = opened_file.read(LARGEST)
        return load_vapid_key(raw)
    except OSError as error:
        raise RefusedError(f"expected --file to name a file that can be read, got {error.strerror}") from None
    except ValueError as error:
        raise RefusedError(str(error)) from None


def _configured(settings: Settings) -> dict[str, str]:
    """The keys that the settings hold themselves, as they hold them."""
    return {name: key.get_secret_value() for name, key in settings.vapid_keys.items()}


def _say_provider(settings: Settings) -> None:
    if settings.key_provider is not None:
        note(f"keys that {settings.key_provider} gives are not shown: change them where it has them from")


def _say_public(made: VapidKey) -> None:
    note(f"the browser's applicationServerKey: {made.public_text}")


def _words(use: VapidKeyUse) -> str:
    if use.current:
        return "current"
    if use.held:
        return "held"
    return "not held: its messages wait, its browsers are told to subscribe again"
