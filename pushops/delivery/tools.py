"""What a process sends with: keys, tokens, the table of answers and connections, opened once for each thread."""

import os
import threading
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from pushops.db import Database
from pushops.delivery.classify import Table, table_of
from pushops.delivery.transport import Transport, transport_rules
from pushops.delivery.vapid import Tokens
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import Keychain, keychain


@dataclass
class Tools:
    """What a process sends with, kept from shift to shift: keys, tokens, the table of answers and connections."""

    chain: Keychain
    tokens: Tokens
    table: Table
    transport: Transport

    def close(self) -> None:
        self.transport.close()


def open_tools(rt: Runtime) -> Tools:
    """Raises SettingsError. Make it in the process that uses it, and close it."""
    chain = keychain(rt.settings)
    tokens = Tokens(chain.vapid, rt.settings.vapid_subject or "")
    table = table_of(rt.settings)
    return Tools(chain, tokens, table, Transport(transport_rules(rt.settings), chain.rules))


_opened: Final[WeakKeyDictionary[Database, dict[tuple[int, int], Tools]]] = WeakKeyDictionary()
_opening: Final = threading.Lock()


def tools_of(rt: Runtime) -> Tools:
    """What this thread sends with: connections are no two threads' at once, and no child's of a fork.

    Kept for as long as the runtime is.
    """
    where = (os.getpid(), threading.get_ident())
    with _opening:
        known = _opened.setdefault(rt.db, {})
        if where not in known:
            for other in [other for other in known if other[0] != where[0]]:
                del known[other]
            known[where] = open_tools(rt)
        return known[where]
