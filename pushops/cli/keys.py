"""``pushops keys``: made here, printed once, kept nowhere; and rolled."""

import json

import typer

from pushops.cli import keys_seal, keys_vapid
from pushops.cli.key_lines import print_lines
from pushops.cli.output import Json, note
from pushops.subscriptions.keys import generate_log_key, generate_seal_key, generate_vapid_key

app = typer.Typer(no_args_is_help=True)
app.add_typer(keys_seal.app, name="seal")
app.add_typer(keys_vapid.app, name="vapid")


@app.callback()
def keys() -> None:
    """Make seal, log and VAPID keys, and roll them."""


@app.command()
def generate(
    json_: Json = False,
    version: int = typer.Option(1, "--seal-version", min=1, help="The version that the seal key is to have."),
    vapid_id: str = typer.Option("1", "--vapid-id", help="The id that the VAPID key is to have."),
) -> None:
    """Print new keys as settings lines, ready for an environment file. Nothing is stored: keep them yourself.

    Added to keys that are in use, a new version goes into the same JSON object; old versions must stay.
    """
    vapid = generate_vapid_key()
    settings = {
        "PUSHOPS_SEAL_KEYS": json.dumps({str(version): generate_seal_key()}),
        "PUSHOPS_SEAL_KEY_VERSION": str(version),
        "PUSHOPS_LOG_HMAC_KEY": generate_log_key(),
        "PUSHOPS_VAPID_KEYS": json.dumps({vapid_id: vapid.private_text}),
        "PUSHOPS_VAPID_KEY_ID": vapid_id,
    }
    print_lines(settings, {"vapid_public_key": vapid.public_text}, json_=json_)
    if not json_:
        note(f"the browser's applicationServerKey: {vapid.public_text}")
