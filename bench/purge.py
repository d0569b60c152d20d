"""``python -m bench.purge``: what a purge through pushops costs against what one would write oneself.

Progress goes to stderr; the last line of stdout is one JSON object. About ten minutes at the defaults on two cores.
"""

import argparse
import json
import os
import signal
import sys
import time
from typing import Any

from bench import beside, house, layout, messages, report, rounds, steady
from bench.house import House, say


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: asked to end"))  # so that the servers are removed
    started = time.monotonic()
    with house.opened() as servers:
        enter(servers)
        found = _measure(servers, options)
    found |= {"rows": options.rows, "rounds": options.rounds, "seconds": round(time.monotonic() - started)}
    report.show(found, house.conditions())
    print(json.dumps(found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.purge", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table, four in five to be purged")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--window", type=float, default=20.0, help="seconds of a live window; 0 leaves live traffic out"
    )
    parser.add_argument(
        "--synchronous", action="store_true", help="leave out the contenders that commit asynchronously"
    )
    return parser.parse_args()


def enter(servers: House) -> None:
    """Give this process what its workers see, and nothing of the caller's settings."""
    environment = servers.environment(log_level="warning")
    os.environ.clear()
    os.environ.update(environment)


def _measure(servers: House, options: argparse.Namespace) -> dict[str, Any]:
    say(f"making both layouts of {options.rows:,} rows")
    layout.build(servers, options.rows)
    results = rounds.play(servers, options.rounds, asynchronous=not options.synchronous)
    say("many small batches")
    quick = steady.last_vs_first(servers)
    servers.clone(layout.KEY_ORDER)
    sizes = messages.largest(servers)
    live = None
    if options.window:
        say("live traffic")
        live = beside.beside(servers, options.rows, options.window)
    return report.figures(results, quick, sizes, live)


if __name__ == "__main__":
    main()
