"""A renderer may do anything: one row is at fault, and nothing that it said is repeated."""

from typing import Any, cast
from uuid import UUID

import pytest

from pushops.delivery import rendering
from pushops.delivery.rendering import Recipient, RenderFault, check_renderer, render
from pushops.errors import SettingsError
from pushops.runtime import Runtime
from tests.made import make_settings

ANN = Recipient(UUID(int=1), "ann", "de", ("news",), "fcm", None)


def runtime(name: str | None) -> Runtime:
    settings = make_settings("postgresql://nobody@localhost/none", renderer=name and f"{__name__}:{name}")
    return Runtime(settings, cast("Any", None), None, cast("Any", None))


def greet(payload: bytes, recipient: Recipient) -> bytes:
    return payload + b" " + str(recipient.user_id).encode()


def fail(_: bytes, recipient: Recipient) -> bytes:
    raise ValueError(f"secret of {recipient.user_id}")


def say_text(payload: bytes, _: Recipient) -> Any:
    return payload.decode()


def grow(_: bytes, recipient: Recipient) -> bytes:
    return b"x" * (3993 if recipient.user_id == "ann" else 3994)


NOT_CALLABLE = 7


def test_a_payload_is_made_for_its_recipient() -> None:
    assert render(runtime("greet"), b"hello", ANN) == b"hello ann"


def test_what_it_raises_is_told_by_its_kind_only() -> None:
    assert render(runtime("fail"), b"hello", ANN) == RenderFault("it raised ValueError")


@pytest.mark.parametrize(("name", "why"), [("say_text", "got str"), ("missing", "loaded"), (None, "not set")])
def test_what_is_no_payload_is_a_fault(name: str | None, why: str) -> None:
    found = render(runtime(name), b"hello", ANN)
    assert isinstance(found, RenderFault)
    assert why in found.why


def test_the_limit_holds_for_what_was_made() -> None:
    bob = Recipient(UUID(int=2), "bob", None, (), "fcm", None)
    assert render(runtime("grow"), b"", ANN) == b"x" * 3993
    assert render(runtime("grow"), b"", bob) == RenderFault("expected at most 3993 bytes, got 3994")


@pytest.mark.parametrize("name", ["missing", "NOT_CALLABLE"])
def test_a_renderer_that_is_none_is_found_at_the_start(name: str) -> None:
    with pytest.raises(SettingsError, match="PUSHOPS_RENDERER"):
        check_renderer(runtime(name).settings)


def test_without_one_there_is_nothing_to_check() -> None:
    assert check_renderer(runtime(None).settings) is None
    assert check_renderer(runtime("greet").settings) is greet
    assert rendering.PAYLOAD_MAX == 3993
