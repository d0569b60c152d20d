"""Thin entry: `python -m pushops.sandbox up|down|status|env`."""

import shlex
import sys

from pushops.errors import PushopsError
from pushops.sandbox.sandbox import Sandbox


def main(arguments: list[str]) -> int:
    verbs = {"up": up, "down": down, "status": status, "env": env}
    if len(arguments) != 1 or arguments[0] not in verbs:
        print(f"expected one of {', '.join(verbs)}, got {shlex.join(arguments) or 'nothing'}", file=sys.stderr)
        return 2
    try:
        return verbs[arguments[0]](Sandbox())
    except PushopsError as error:
        print(error, file=sys.stderr)
        return 1


def up(sandbox: Sandbox) -> int:
    sandbox.up()
    return env(sandbox)


def down(sandbox: Sandbox) -> int:
    print("sandbox stopped and removed" if sandbox.down() else "no sandbox to stop")
    return 0


def status(sandbox: Sandbox) -> int:
    found = sandbox.status()
    print(f"folder {found.folder}\npostgresql pid {found.postgres_pid}\nvalkey pid {found.valkey_pid}")
    print(f"push service pid {found.push_pid}")
    return 0 if found.info else 3


def env(sandbox: Sandbox) -> int:
    found = sandbox.environment()
    if found is None:
        print("expected the sandbox to be up, got none", file=sys.stderr)
        return 3
    for name, value in found.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
