"""``python -m bench.send``: messages a second through pushops against what one would send with oneself.

Progress goes to stderr; the last line of stdout is one JSON object. About six minutes at the defaults on two cores.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Final

from bench import house
from bench.house import House, say
from bench.purge import enter
from bench.sending import contender, figures, peers, people, web
from bench.sending.contender import ASYNC, ENCRYPTION, NODE, RUNS, SESSION, TRANSPORT, WEBPUSH, WHOLE
from bench.sending.job import KEY_ID, SUBJECT, WARM, Done, Job
from bench.sending.web import Web
from pushops.sandbox.push.vendors import MOZILLA_HOST
from pushops.settings import load_settings
from pushops.subscriptions.keychain import keychain

# What share of the messages a contender sends: about as many seconds each.
SHARES: Final[Mapping[str, float]] = {
    WEBPUSH: 0.05,
    SESSION: 0.125,
    ASYNC: 0.4,
    NODE: 0.2,
    TRANSPORT: 1,
    WHOLE: 1,
    ENCRYPTION: 0.5,
}
LEAST: Final = 100  # messages that anybody sends
LIMIT: Final = 1_800  # seconds until a contender that does not end is an error


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: asked to end"))  # so that the servers are removed
    started, core = time.monotonic(), contender.core()
    _leave(core)
    with house.opened({}) as servers, web.serving(servers.folder) as server:
        servers.autovacuum(on=True)
        bench = Bench(servers, server, core)
        found = figures.figures(bench.play(options.sends, options.rounds), bench.memory(options.memory))
    found |= {
        "sends": options.sends,
        "rounds": options.rounds,
        "server": server.name,
        "skipped": bench.skipped,
        "seconds": round(time.monotonic() - started),
    }
    figures.show(found)
    print(json.dumps(found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.send", description=__doc__)
    parser.add_argument("--sends", type=int, default=20_000, help="messages; slow contenders send a share of them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=int, default=200_000, help="messages of the run that memory is looked at in")
    return parser.parse_args()


def _leave(core: set[int]) -> None:
    """Servers, which we start, have every core but the contender's, unless it is the only one."""
    os.sched_setaffinity(0, os.sched_getaffinity(0) - core or core)


class Bench:
    """One server, one PostgreSQL as it ships, and contenders that take turns."""

    def __init__(self, servers: House, server: Web, core: set[int]) -> None:
        self.skipped: dict[str, str] = {}
        self._servers = servers
        self._server = server
        self._core = core
        self._file = servers.folder / "people"
        self._node = servers.folder / "node"
        enter(servers)
        self._key = keychain(load_settings()).vapid[KEY_ID]
        self._rss: dict[str, float] = {}

    def play(self, sends: int, rounds: int) -> list[dict[str, Done]]:
        """All rounds; another contender begins each time."""
        why = peers.install_node(self._node)
        if why is not None:
            say(f"without {NODE}: {why}")
            self.skipped[NODE] = why
        self._register(sends)
        return [self._round(number, sends) for number in range(rounds)]

    def memory(self, sends: int) -> dict[str, float]:
        """Of the whole contender, by number of sends: in a longer run of its own, or in its last round."""
        if sends:
            self._register(sends)
            self._rss = self._run(WHOLE, sends).rss_mb
        return self._rss

    def _round(self, number: int, sends: int) -> dict[str, Done]:
        found: dict[str, Done] = {}
        names = [name for name in RUNS if name not in self.skipped]
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            done = self._run(name, max(LEAST, round(sends * SHARES[name])))
            say(f"round {number + 1}, {name}: {done.rate:,.0f}/s, {done.cpu / done.sent * 1e6:.0f} us of CPU each")
            self._rss = done.rss_mb or self._rss
            found[name] = done
        return {name: found[name] for name in names}

    def _register(self, sends: int) -> None:
        say(f"making {sends:,} subscriptions")
        made = self._server.issue(WARM + sends, self._key.public_text)
        people.write(made, self._file)
        people.drop(self._servers)
        people.store(self._servers, made)

    def _run(self, name: str, count: int) -> Done:
        """One contender in a process of its own; the server must have got exactly what it sent."""
        if name == WHOLE:
            self._servers.clone(people.TEMPLATE)
        job = Job(name, self._file, count, f"{web.HOST}:{self._server.port}", self._server.ca_file)
        before = self._server.received()
        command = [sys.executable, "-m", contender.__name__, job.as_json, json.dumps(sorted(self._core))]
        done = subprocess.run(
            command, env=self._environment(), stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=True
        )
        found = Done(**json.loads(done.stdout))
        got = self._server.received() - before
        meant = 0 if name == ENCRYPTION else count + WARM + (WARM if name == WHOLE else 0)
        assert got == meant, f"expected the server to receive {meant} messages of {name}, got {got}"
        return found

    def _environment(self) -> dict[str, str]:
        there = json.dumps({MOZILLA_HOST: f"{web.HOST}:{self._server.port}"})
        settings = self._servers.environment(
            log_level="warning",
            ca_file=self._server.ca_file,
            connect_to=there,
            provider_rate=1_000_000,
            vapid_subject=SUBJECT,
            payload_store=f"file://{self._servers.folder}/payloads",
        )
        own = {
            "BENCH_VAPID_KEY": self._key.private_text,
            "BENCH_VAPID_PUBLIC": self._key.public_text,
            "NODE_PATH": f"{self._node}/node_modules",
            "REQUESTS_CA_BUNDLE": str(self._server.ca_file),
        }
        return settings | own


if __name__ == "__main__":
    main()
