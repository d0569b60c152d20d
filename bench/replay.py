"""``python -m bench.replay``: replaying dead letters against sending, triage, and a paced drain beside live messages.

Progress goes to stderr; the last line of stdout is one JSON object. About seven minutes at the defaults on two cores.
"""

import argparse
import json
import signal
import sys
import time
from typing import Any, Final

from bench import house
from bench.house import say
from bench.replaying import figures, halves, million, prepared
from bench.replaying.figures import Round
from bench.replaying.paced import paced
from bench.replaying.stage import Stage, staged
from bench.workers import Worker, working

TRIAGED: Final = 1_000_000


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: asked to end"))  # so that the servers are removed
    started = time.monotonic()
    with staged() as stage:
        found = _measure(stage, options) | {"server": stage.web.name}
    found |= {"letters": options.letters, "triaged": options.triaged, "rounds": options.rounds}
    found["seconds"] = round(time.monotonic() - started)
    figures.show(found, house.conditions())
    print(json.dumps(found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument("--letters", type=int, default=50_000, help="letters that are drained, and messages sent")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--triaged", type=int, default=TRIAGED, help="letters of the table that triage looks at")
    parser.add_argument("--window", type=float, default=20.0, help="seconds of a window without a drain, and with it")
    parser.add_argument("--pairs", type=int, default=4, help="so often both windows; 0 leaves the paced drain out")
    return parser.parse_args()


def _measure(stage: Stage, options: argparse.Namespace) -> dict[str, Any]:
    prepared.build(stage.house, stage.web, options.letters)
    rounds = _rounds(stage, options.letters, options.rounds)
    triage = million.triage_ms(stage.house, options.triaged)
    found = paced(stage, options.window, options.pairs) if options.pairs else None
    return figures.figures(rounds, triage, found)


def _rounds(stage: Stage, count: int, rounds: int) -> list[Round]:
    """Both halves in turns through the same worker; the other one begins each time."""
    with working(stage.house, "pushops.tasks", **stage.settings | halves.UNPACED) as worker:
        halves.acquaint(stage, worker)
        return [_round(stage, worker, number, count) for number in range(rounds)]


def _round(stage: Stage, worker: Worker, number: int, count: int) -> Round:
    seconds = {}
    for half in (halves.send, halves.drain) if number % 2 else (halves.drain, halves.send):
        seconds[half] = half(stage, worker, count)
        say(f"round {number + 1}, {half.__name__}: {count / seconds[half]:,.0f} rows/s")
    return Round(count / seconds[halves.drain], count / seconds[halves.send])


if __name__ == "__main__":
    main()
