"""The WebSocket side, spoken to as Firefox speaks: subscribe, be sent to, acknowledge, leave, come back."""

import json
import socket
import ssl
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Message, Request, TextMessage

from pushops.sandbox.push import PushService
from pushops.sandbox.push.opening import open_message
from pushops.sandbox.push.vendors import decode, encode
from tests.pushing import Sender, push, push_service

AUTH = b"sixteen bytes ok"


class Browser:
    """As much of Firefox as its push client is."""

    def __init__(self, service: PushService, host: str = "push.services.mozilla.com") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        context = ssl.create_default_context(cafile=str(service.ca_file))
        plain = socket.create_connection(("127.0.0.1", service.port), timeout=5)
        self._socket = context.wrap_socket(plain, server_hostname=host)
        self._ws = WSConnection(ConnectionType.CLIENT)
        self._events: Iterator[Any] = iter(())
        self._write(Request(host=host, target="/", subprotocols=["push-notification"]))
        accepted = self._next()
        assert isinstance(accepted, AcceptConnection)
        assert accepted.subprotocol == "push-notification"

    def say(self, **words: Any) -> None:
        self._write(Message(data=json.dumps(words)))

    def hear(self) -> dict[str, Any]:
        event = self._next()
        assert isinstance(event, TextMessage), event
        found: dict[str, Any] = json.loads(event.data)
        return found

    def ask(self, message_type: str, **words: Any) -> dict[str, Any]:
        self.say(messageType=message_type, **words)
        return self.hear()

    def subscribe(self, channel: str, key: str | None) -> dict[str, Any]:
        """A subscription as the page would get it."""
        answer = self.ask("register", channelID=channel, key=key)
        assert (answer["status"], answer["channelID"]) == (200, channel)
        public = self.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        return {"endpoint": answer["pushEndpoint"], "keys": {"p256dh": encode(public), "auth": encode(AUTH)}}

    def read(self, notification: dict[str, Any]) -> bytes | None:
        return open_message(decode(notification["data"]), self.key, AUTH)

    def close(self) -> None:
        self._socket.close()

    def _next(self) -> Any:
        while True:
            event = next(self._events, None)
            if event is not None:
                return event
            data = self._socket.recv(65536)
            self._ws.receive_data(data or None)
            self._events = self._ws.events()

    def _write(self, event: Any) -> None:
        self._socket.sendall(self._ws.send(event))


@pytest.fixture(scope="module")
def service() -> Iterator[PushService]:
    with push_service() as found:
        yield found


@pytest.fixture
def sender() -> Sender:
    return Sender()


@pytest.fixture
def browser(service: PushService) -> Iterator[Browser]:
    found = Browser(service)
    yield found
    found.close()


def new_channel() -> str:
    return str(uuid.uuid4())


def test_a_browser_subscribes_and_is_sent_to(service: PushService, browser: Browser, sender: Sender) -> None:
    hello = browser.ask("hello", use_webpush=True, broadcasts={})
    assert (hello["status"], hello["use_webpush"], hello["messageType"]) == (200, True, "hello")
    channel = new_channel()
    subscription = browser.subscribe(channel, sender.public)
    assert subscription["endpoint"].startswith("https://updates.push.services.mozilla.com/wpush/v2/")
    assert push(service, subscription, b"hello you", sender).status == 201
    heard = browser.hear()
    assert (heard["messageType"], heard["channelID"]) == ("notification", channel)
    assert heard["headers"] == {"encoding": "aes128gcm"}
    assert browser.read(heard) == b"hello you"


def test_a_subscription_is_bound_to_the_key_it_was_made_with(service: PushService, browser: Browser) -> None:
    browser.ask("hello", use_webpush=True)
    subscription = browser.subscribe(new_channel(), Sender().public)
    got = push(service, subscription)
    assert (got.status, b"VAPID public key mismatch" in got.body) == (401, True)


def test_what_was_unregistered_is_gone(service: PushService, browser: Browser, sender: Sender) -> None:
    browser.ask("hello", use_webpush=True)
    channel = new_channel()
    subscription = browser.subscribe(channel, sender.public)
    assert browser.ask("unregister", channelID=channel, code=200)["status"] == 200
    got = push(service, subscription, sender=sender)
    assert (got.status, json.loads(got.body)["errno"]) == (410, 106)


def test_what_was_not_acknowledged_comes_again(service: PushService, sender: Sender) -> None:
    first = Browser(service)
    uaid = first.ask("hello", use_webpush=True)["uaid"]
    channel = new_channel()
    subscription = first.subscribe(channel, sender.public)
    for text in (b"one", b"two"):
        push(service, subscription, text, sender)
    heard = [first.hear(), first.hear()]
    first.say(messageType="ack", updates=[{"channelID": channel, "version": heard[0]["version"]}])
    assert first.ask("ping") == {}
    first.close()
    push(service, subscription, b"three", sender)
    push(service, subscription, b"now or never", sender, TTL="0")
    again = Browser(service)
    assert again.ask("hello", use_webpush=True, uaid=uaid)["uaid"] == uaid
    again.key = first.key
    assert [again.read(again.hear()) for _ in range(2)] == [b"two", b"three"]
    assert again.ask("ping") == {}
    again.close()


def test_now_or_never_reaches_who_is_there_and_is_not_kept(
    service: PushService, browser: Browser, sender: Sender
) -> None:
    browser.ask("hello", use_webpush=True)
    subscription = browser.subscribe(new_channel(), sender.public)
    push(service, subscription, b"now", sender, TTL="0")
    assert browser.read(browser.hear()) == b"now"
    assert service.messages(subscription["endpoint"]) == []


def test_an_unknown_browser_is_given_a_new_name(browser: Browser) -> None:
    assert browser.ask("hello", use_webpush=True, uaid="f" * 32)["uaid"] != "f" * 32


def test_a_channel_that_is_no_uuid_is_refused(browser: Browser) -> None:
    browser.ask("hello", use_webpush=True)
    assert browser.ask("register", channelID="channel")["status"] == 400


def test_broadcasts_are_ignored_and_nonsense_ends_the_connection(browser: Browser) -> None:
    browser.ask("hello", use_webpush=True)
    browser.say(messageType="broadcast_subscribe", broadcasts={"remote-settings/monitor_changes": "1"})
    assert browser.ask("ping") == {}
    browser.say(messageType="sing")
    assert isinstance(browser._next(), CloseConnection)


def test_a_browser_may_be_given_endpoints_of_another_host(sender: Sender) -> None:
    with push_service() as service:
        host = f"localhost:{service.port}"
        service.tell("endpoint_host", host=host)
        browser = Browser(service, "localhost")
        browser.ask("hello", use_webpush=True)
        subscription = browser.subscribe(new_channel(), sender.public)
        assert subscription["endpoint"].startswith(f"https://{host}/wpush/v2/")
        assert push(service, subscription, b"near", sender).status == 201
        assert browser.read(browser.hear()) == b"near"
        browser.close()
