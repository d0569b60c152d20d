"""``python -m bench.sending.contender JOB``: one contender, alone in this process; prints what it did as JSON."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.sending import ours, peers
from bench.sending.job import Done, Job

WEBPUSH: Final = "webpush"
SESSION: Final = "webpusher_session"
ASYNC: Final = "webpush_async"
NODE: Final = "node_web_push"
TRANSPORT: Final = "transport"
WHOLE: Final = "whole"
ENCRYPTION: Final = "encryption"
PEERS: Final = (WEBPUSH, SESSION, ASYNC, NODE)

RUNS: Final[Mapping[str, Callable[[Job], Done]]] = {
    WEBPUSH: peers.per_call,
    SESSION: peers.kept_session,
    ASYNC: peers.asynchronous,
    NODE: peers.node,
    TRANSPORT: ours.transport,
    WHOLE: ours.whole,
    ENCRYPTION: ours.encryption,
}


def core() -> set[int]:
    """Where contenders run: the first of our cores. Servers have the others, where there are others."""
    return {min(os.sched_getaffinity(0))}


def main() -> None:
    told = json.loads(sys.argv[1])
    os.sched_setaffinity(0, json.loads(sys.argv[2]))
    job = Job(told["contender"], Path(told["people"]), told["count"], told["local"], Path(told["ca_file"]))
    print(json.dumps(asdict(RUNS[job.contender](job))))


if __name__ == "__main__":
    main()
