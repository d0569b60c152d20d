"""``python -m pushops.demo``: the last line of stdout is a JSON object, the exit code is 0 only if it says ok."""

import argparse
import json
import signal
import sys
import traceback
from types import FrameType
from typing import Final

from pushops.demo.stage import SIGNALS, Scale
from pushops.demo.story import tell
from pushops.demo.telling import Teller
from pushops.errors import PushopsError

INTERRUPTED: Final = 130


def main(arguments: list[str] | None = None) -> int:
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    scale, teller = _parse(arguments), Teller()
    try:
        verdict = tell(scale, teller)
    except PushopsError as error:
        teller.warn(f"the demo could not be told to its end: {error}")
        return _end({"ok": False, "error": error.label}, 1)
    except KeyboardInterrupt:
        teller.warn("interrupted; servers, workers and files are gone")
        return _end({"ok": False, "error": "interrupted"}, INTERRUPTED)
    except Exception as error:  # noqa: BLE001  (the last line is JSON whatever happens)
        teller.warn(traceback.format_exc())
        return _end({"ok": False, "error": type(error).__name__}, 1)
    return _end(verdict.summary(), 0 if verdict.ok else 1)


def _parse(arguments: list[str] | None) -> Scale:
    parser = argparse.ArgumentParser(
        prog="python -m pushops.demo", description="The nightly purge and a campaign, as a story."
    )
    parser.add_argument("--tombstones", type=int, default=Scale.tombstones, help="rows to purge (%(default)s)")
    parser.add_argument("--live", type=int, default=Scale.live, help="rows to leave alone (%(default)s)")
    parser.add_argument("--seconds", type=float, default=Scale.seconds, help="length of the purge (%(default)s)")
    parser.add_argument("--subscribers", type=int, default=Scale.subscribers, help="rows to send to (%(default)s)")
    found = parser.parse_args(arguments)
    if found.tombstones < Scale.FEWEST or found.live < 1 or found.seconds <= 0:
        parser.error(f"expected at least {Scale.FEWEST} tombstones, one live row and a positive number of seconds")
    if found.subscribers < Scale.FEWEST_SUBSCRIBERS:
        parser.error(f"expected at least {Scale.FEWEST_SUBSCRIBERS} subscribers, got {found.subscribers}")
    return Scale(found.tombstones, found.live, found.seconds, found.subscribers)


def _end(summary: dict[str, object], code: int) -> int:
    sys.stdout.flush()
    print(json.dumps(summary), flush=True)
    return code


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
