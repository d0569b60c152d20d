"""Contenders 1 to 4: the libraries that one would take, each at its best by its own documentation."""

import asyncio
import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aiohttp
import requests
from py_vapid import Vapid02
from pywebpush import WebPusher, webpush, webpush_async

from bench.sending.job import PAYLOAD, SUBJECT, TTL, WARM, Done, Job, Person, each, timed

CONCURRENCY: Final = 100
VERSION: Final = "3.6.7"  # of web-push
SCRIPT: Final = Path(__file__).with_name("peer.cjs")


def per_call(job: Job) -> Done:
    """(1) A call for each, as the readme has it; the key is parsed beforehand."""
    key = _key()

    def send(one: Person) -> None:
        webpush(one, PAYLOAD, vapid_private_key=key, vapid_claims={"sub": SUBJECT}, ttl=TTL)

    return each(job.local_people(), send)


def kept_session(job: Job) -> Done:
    """(2) A kept connection, and one token for all: nobody asks for a new one each time."""
    headers = _key().sign({"sub": SUBJECT, "aud": f"https://{job.local}"})
    with requests.Session() as session:
        session.verify = str(job.ca_file)

        def send(one: Person) -> None:
            answer = WebPusher(one, requests_session=session).send(PAYLOAD, headers, ttl=TTL)
            assert answer.status_code == 201

        return each(job.local_people(), send)


def asynchronous(job: Job) -> Done:
    """(3) A hundred at a time over one aiohttp session."""
    people = job.local_people()
    return asyncio.run(_asynchronous(people, ssl.create_default_context(cafile=job.ca_file)))


async def _asynchronous(people: list[Person], tls: ssl.SSLContext) -> Done:
    key = _key()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONCURRENCY, ssl=tls)) as session:

        async def send(some: Iterator[Person]) -> None:
            for one in some:
                claims = {"sub": SUBJECT}
                await webpush_async(
                    one, PAYLOAD, vapid_private_key=key, vapid_claims=claims, ttl=TTL, aiohttp_session=session
                )

        async def all_of(some: list[Person]) -> None:
            shared = iter(some)
            await asyncio.gather(*(send(shared) for _ in range(CONCURRENCY)))

        await all_of(people[:WARM])
        loop = asyncio.get_running_loop()
        started = loop.time()
        done = timed(len(people) - WARM, lambda: None)
        cpu = os.times()
        await all_of(people[WARM:])
        seconds, after = loop.time() - started, os.times()
    return Done(done.sent, seconds, after.user + after.system - cpu.user - cpu.system)


def node(job: Job) -> Done:
    """(4) Node's web-push, a hundred at a time over an agent that keeps connections."""
    told = job.as_json
    home = os.environ["NODE_PATH"]
    environment = os.environ | {"NODE_EXTRA_CA_CERTS": str(job.ca_file), "NODE_PATH": home}
    more = json.dumps({"payload": PAYLOAD, "ttl": TTL, "warm": WARM, "concurrency": CONCURRENCY, "subject": SUBJECT})
    command = ["node", str(SCRIPT), told, more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return Done(**json.loads(done.stdout))


def install_node(folder: Path) -> str | None:
    """Put web-push into a folder with npm; why that could not be done, else None."""
    folder.mkdir()
    command = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder), f"web-push@{VERSION}"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        return "npm is not installed"
    except subprocess.TimeoutExpired:
        return "npm did not end within two minutes"
    return None if done.returncode == 0 else f"npm refused: {(done.stderr or done.stdout).strip()[-200:]}"


def _key() -> Vapid02:
    return Vapid02.from_raw(os.environ["BENCH_VAPID_KEY"].encode())
