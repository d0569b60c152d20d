"""Who the servers run as, and the folders that keep everybody else out."""

import os
import pwd
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pushops.errors import PushopsError

# Nothing of the caller's environment may steer the servers: PGOPTIONS, PGHOST, LC_ALL and the like stay outside.
ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
COMMAND_SECONDS: Final = 120


@dataclass(frozen=True)
class Account:
    """The user that the servers run as: the caller, or `nobody` when the caller is root, whom PostgreSQL refuses."""

    uid: int
    gid: int

    @property
    def borrowed(self) -> bool:
        return self.uid != os.geteuid()

    def run(self, arguments: Sequence[str], folder: Path, source: IO[str] | None = None) -> str:
        """Run a command as this user from `folder`, return its output; PushopsError with its complaint if it fails."""
        name = Path(arguments[0]).name
        try:
            done = self._run(arguments, folder, source)
        except (OSError, subprocess.SubprocessError) as error:
            raise PushopsError(f"expected {name} to run as uid {self.uid}, got {error}") from error
        if done.returncode:
            complaint = (done.stderr or done.stdout).strip()
            raise PushopsError(f"expected {name} to succeed, got exit {done.returncode}: {complaint}")
        return done.stdout

    def succeeds(self, arguments: Sequence[str]) -> bool:
        """Whether this user can run the command: asking the kernel covers modes, ACLs and mount options alike."""
        try:
            self.run(arguments, Path("/"))
        except PushopsError:
            return False
        return True

    def can_enter(self, folder: Path) -> bool:
        return not self.borrowed or self.succeeds(["/bin/sh", "-c", 'cd -- "$1"', "sh", str(folder)])

    def enter(self, folder: Path) -> None:
        """Raise PushopsError unless this user can enter `folder`: nobody's modes are changed to let it in.

        FileNotFoundError where it was taken away meanwhile, whether or not another stands there by now.
        """
        found = folder.lstat()
        if not self.can_enter(folder):
            if not os.path.samestat(found, folder.lstat()):
                raise FileNotFoundError(folder)
            user = pwd.getpwuid(self.uid).pw_name
            raise PushopsError(f"expected a folder that user {user}, who runs the servers, can enter, got {folder}")

    def make_folder(self, path: Path, *, owned: bool = False, writable: bool = False) -> None:
        """Make a folder for the caller and this user only, unless it is there; an existing one keeps its mode.

        `owned` gives it to this user; otherwise the caller keeps it, and this user may enter, and write if `writable`.
        It appears with its mode: another process that comes at the same time may find it closed otherwise.
        """
        if os.path.lexists(path):
            return
        try:
            partial = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        except OSError as error:
            raise PushopsError(f"expected to make the folder {path}, got {error.strerror}") from error
        try:
            self._hand_over(partial, owned=owned, writable=writable)
            partial.rename(path)
        except OSError as error:
            partial.rmdir()
            if not os.path.lexists(path):  # else another was quicker, and uses it already
                raise PushopsError(f"expected to make the folder {path}, got {error.strerror}") from error

    def make_file(self, path: Path, text: str = "", *, owned: bool = False) -> None:
        """Write a file that this user can read, or append to if `owned`; an existing one is replaced."""
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            if self.borrowed:
                os.fchown(file.fileno(), self.uid if owned else -1, self.gid)
                os.fchmod(file.fileno(), 0o600 if owned else 0o640)

    def _hand_over(self, folder: Path, *, owned: bool, writable: bool) -> None:
        if self.borrowed and owned:
            os.chown(folder, self.uid, self.gid)
        elif self.borrowed:
            os.chown(folder, -1, self.gid)
            folder.chmod(0o730 if writable else 0o710)

    def _run(
        self, arguments: Sequence[str], folder: Path, source: IO[str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments,
            cwd=folder,
            env=ENVIRONMENT,
            stdin=source or subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
            umask=0o077,
            user=self.uid if self.borrowed else None,
            group=self.gid if self.borrowed else None,
            extra_groups=[] if self.borrowed else None,
        )


def server_account() -> Account:
    """Return the caller's account, or `nobody` for root."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise PushopsError("expected a user named nobody, because PostgreSQL does not run as root, got none") from None
    return Account(nobody.pw_uid, nobody.pw_gid)
