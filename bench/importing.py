"""``python -m bench.importing``: an import of many rows against a plain COPY and index build of what it stored.

Progress goes to stderr; the last line of stdout is one JSON object.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import psycopg

from bench import incoming, report
from bench.house import House, conditions, opened, say
from bench.incoming import Written
from bench.purge import enter
from bench.timing import clock
from pushops.db.migrate import migrate
from pushops.settings import load_settings

EMPTY: Final = "import_empty"
BARS: Final = {"import_vs_copy": ("<=", 5, 2), "memory_growth": ("<=", 1.1, None)}
_BLOCK: Final = 1 << 20
_SAMPLED: Final = 0.2  # seconds between two looks at the memory
_TABLE: Final = "pushops.push_subscription"


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: asked to end"))  # so that the servers are removed
    found = measure(options.rows, options.rounds)
    report.Console(width=110, highlight=False).print(report.bars_table(found, BARS))
    print(json.dumps(found))


def measure(rows: int, rounds: int) -> dict[str, Any]:
    """Everything there is to say; ``import_vs_copy`` is the median over the rounds of seconds by seconds."""
    with opened() as servers:
        enter(servers)
        say(conditions())
        file = servers.folder / "rows.jsonl"
        written = incoming.write(file, rows)
        say(f"{written}, {file.stat().st_size / 1e6:,.0f} MB")
        servers.clone("template1")
        migrate(load_settings())
        servers.keep(EMPTY)
        played = [_round(servers, file, written) for _ in range(rounds)]
    return figures(written, played)


def figures(written: Written, played: list[dict[str, Any]]) -> dict[str, Any]:
    """``memory_growth``: the most that all processes of an import held, by the most in its first fifth."""
    return {
        "rows": written.lines,
        "endpoints": written.endpoints,
        "import_vs_copy": round(median(each["import_s"] / each["copy_s"] for each in played), 3),
        "again_vs_copy": round(median(each["again_s"] / each["copy_s"] for each in played), 3),
        "rows_per_s": round(median(written.lines / each["import_s"] for each in played)),
        "memory_mb": max(each["memory_mb"] for each in played),
        "memory_growth": round(median(each["memory_growth"] for each in played), 3),
        "rounds": [{name: round(value, 2) for name, value in each.items()} for each in played],
    }


def _round(servers: House, file: Path, written: Written) -> dict[str, float]:
    servers.clone(EMPTY)
    memory: list[tuple[float, float]] = []
    first = _import(servers, file, memory)
    seconds = first.pop("seconds")
    expected = {"inserted": written.endpoints, "duplicates": written.duplicates, "refused": written.malformed}
    assert {name: first[name] for name in expected} == expected, first
    again = _import(servers, file, [])
    assert (again["unchanged"], again["inserted"], again["updated"]) == (written.endpoints, 0, 0), again
    copied = _copy(servers, file.with_suffix(".copy"))
    early = max(held for at, held in memory if at <= seconds / 5 or held == memory[0][1])
    found = {
        "import_s": seconds,
        "again_s": again["seconds"],
        "copy_s": copied,
        "memory_mb": max(held for _, held in memory),
        "memory_growth": max(held for _, held in memory) / early,
    }
    say(str(found))
    return found


def _import(servers: House, file: Path, memory: list[tuple[float, float]]) -> dict[str, Any]:
    """The command as an operator gives it; its own counts and how long it took, Python's start included."""
    _checkpoint(servers)
    command = [str(Path(sys.executable).with_name("pushops")), "subscription", "import", str(file), "--json"]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        while child.poll() is None:
            memory.append((time.monotonic() - began, sum(_resident(pid) for pid in _family(child.pid))))
            time.sleep(_SAMPLED)
        seconds = time.monotonic() - began
        assert child.stdout is not None
        found: dict[str, Any] = json.loads(child.stdout.read())
    return {**found, "seconds": seconds}


def _copy(servers: House, path: Path) -> float:
    """Seconds of COPY into a table like ours and of its indexes, of the very rows that the import stored."""
    with psycopg.connect(servers.url) as conn, path.open("wb") as file:
        with conn.cursor().copy(f"COPY {_TABLE} TO STDOUT") as rows:
            for block in rows:
                file.write(block)
        indexes = conn.execute(
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'pushops' AND tablename = 'push_subscription'"
        ).fetchall()
    servers.clone(EMPTY)
    with psycopg.connect(servers.url, autocommit=True) as conn:
        conn.execute(f"CREATE TABLE plain (LIKE {_TABLE} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
        _checkpoint(servers)
        statements = [
            text.replace(" INDEX ", " INDEX plain_").replace(f" ON {_TABLE} ", " ON plain ") for (text,) in indexes
        ]
        return clock(lambda: _load(conn, path, statements))


def _load(conn: psycopg.Connection[Any], path: Path, statements: list[str]) -> None:
    with path.open("rb") as file, conn.cursor().copy("COPY plain FROM STDIN") as rows:
        while block := file.read(_BLOCK):
            rows.write(block)
    for statement in statements:
        conn.execute(statement.encode())


def _checkpoint(servers: House) -> None:
    with servers.admin() as conn:
        conn.execute("CHECKPOINT")


def _family(pid: int) -> Iterator[int]:
    """A process and its children; none where it has ended."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def _resident(pid: int) -> float:
    """MB of memory that only this process has (what libraries share counts once too often otherwise)."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0.0
    fields = dict(line.split(":", 1) for line in text.splitlines()[1:])
    return sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty")) / 1000


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.importing", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
