"""The file that an import reads: subscriptions with a key of their own each, some twice, some not fit to be stored."""

import base64
import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DUPLICATES: Final = 0.05
MALFORMED: Final = 0.02

# P-256 (SEC 2, section 2.4.2): its field and its generator.
_FIELD: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
_G: Final = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_HOSTS: Final = (
    *["https://fcm.googleapis.com/fcm/send/"] * 13,
    *["https://updates.push.services.mozilla.com/wpush/v2/"] * 4,
    *["https://web.push.apple.com/"] * 2,
    "https://db5p.notify.windows.com/w/?token=",
)


@dataclass(frozen=True)
class Written:
    """``endpoints`` is how many different ones can be stored."""

    lines: int
    endpoints: int
    duplicates: int
    malformed: int


def write(path: Path, lines: int, seed: int = 1) -> Written:
    """JSON lines as an application would print them that kept what browsers gave it."""
    dice = random.Random(seed)
    points = _walk()
    known: list[dict[str, Any]] = []
    duplicates = malformed = 0
    with path.open("w", encoding="ascii") as file:
        for number in range(lines):
            draw = dice.random()
            if draw < MALFORMED:
                malformed += 1
                file.write(_broken(_row(number, next(points), dice), malformed))
            elif draw < MALFORMED + DUPLICATES and known:
                duplicates += 1
                file.write(json.dumps(dice.choice(known) | {"user": f"user-{number}"}) + "\n")
            else:
                row = _row(number, next(points), dice)
                file.write(json.dumps(row) + "\n")
                if number % 16 == 0:  # a few remembered are enough to be repeated
                    known.append(row)
    return Written(lines, lines - duplicates - malformed, duplicates, malformed)


def _walk() -> Iterator[tuple[int, int]]:
    """2G, 3G, 4G ...: so many valid keys as are asked for, each another one."""
    (gx, gy), (x, y) = _G, _double(_G)
    while True:
        yield x, y
        slope = (y - gy) * pow(x - gx, -1, _FIELD) % _FIELD
        x, y = (third := (slope * slope - x - gx) % _FIELD), (slope * (gx - third) - gy) % _FIELD


def _double(point: tuple[int, int]) -> tuple[int, int]:
    x, y = point
    slope = (3 * x * x - 3) * pow(2 * y, -1, _FIELD) % _FIELD
    third = (slope * slope - 2 * x) % _FIELD
    return third, (slope * (x - third) - y) % _FIELD


def _row(number: int, point: tuple[int, int], dice: random.Random) -> dict[str, Any]:
    name = _text(hashlib.sha512(b"%d" % number).digest()) + _text(hashlib.sha256(b"%d" % number).digest())
    x, y = point
    keys = {"p256dh": _text(b"\x04" + x.to_bytes(32) + y.to_bytes(32)), "auth": _text(dice.randbytes(16))}
    row: dict[str, Any] = {"endpoint": dice.choice(_HOSTS) + name, "expirationTime": None, "keys": keys}
    if dice.random() < 0.7:
        row["user"] = f"user-{number * 7919 % 700_001}"
    day, second = dice.randrange(1, 28), dice.randrange(60)
    created = f"2025-{dice.randrange(1, 12):02}-{day:02}T12:00:{second:02}Z"
    return row | {"tags": ["news"], "origin": f"https://shop-{number % 3}.example.org", "created_at": created}


def _broken(row: dict[str, Any], number: int) -> str:
    """One of six ways in which rows of other stores are no subscriptions."""
    keys = row["keys"]
    ways: list[dict[str, Any]] = [
        {"endpoint": row["endpoint"].replace("https", "http")},
        {"keys": keys | {"auth": keys["auth"][:-6]}},
        {"keys": keys | {"p256dh": _text(b"\x04" + b"\x01" * 64)}},  # 65 bytes, and not on the curve
        {"keys": None},
        {"endpoint": "https://permanently-removed.invalid/x"},
    ]
    way = number % (len(ways) + 1)
    return "{broken\n" if way == len(ways) else json.dumps(row | ways[way]) + "\n"


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
