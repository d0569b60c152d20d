"""An authority of one's own and what it certifies, made once per folder; certificates that are wrong, too."""

import datetime as dt
import ipaddress
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pushops.sandbox.folders import write_private
from pushops.sandbox.push.script import Handshake
from pushops.sandbox.push.vendors import CERTIFIED

CA_FILE: Final = "ca.pem"
_DAY: Final = dt.timedelta(days=1)
_LIFE: Final = dt.timedelta(days=3650)
_BOTH: Final = ("h2", "http/1.1")


@dataclass(frozen=True)
class Signer:
    """An authority: its certificate and key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certificates(folder: Path) -> None:
    """Write the CA and one certificate for each way to present one; nothing where they are there already."""
    if (folder / CA_FILE).exists():
        return
    ours, strange = make_authority("pushops sandbox"), make_authority("a stranger")
    now = dt.datetime.now(dt.UTC)
    made = {
        "good": certify(ours, CERTIFIED, now - _DAY, now + _LIFE),
        Handshake.STRANGER: certify(strange, CERTIFIED, now - _DAY, now + _LIFE),
        Handshake.EXPIRED: certify(ours, CERTIFIED, now - 90 * _DAY, now - _DAY),
        Handshake.WRONG_NAME: certify(ours, ("push.example.net",), now - _DAY, now + _LIFE),
    }
    for name, pem in made.items():
        write_private(folder / f"{name}.pem", pem)
    write_private(folder / CA_FILE, ours.certificate.public_bytes(Encoding.PEM).decode())


def make_authority(name: str) -> Signer:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    now = dt.datetime.now(dt.UTC)
    builder = _builder(subject, subject, key.public_key(), now - _DAY * 365, now + _LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(usage, critical=True).add_extension(identifier, critical=False)
    return Signer(builder.sign(key, SHA256()), key)


def certify(signer: Signer, names: Sequence[str], begin: dt.datetime, end: dt.datetime) -> str:
    """Key and certificate of a server for these names (and for 127.0.0.1), as one PEM text."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    builder = _builder(subject, signer.certificate.subject, key.public_key(), begin, end)
    alternatives = [x509.DNSName(name) for name in names]
    addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))] if "localhost" in names else []
    builder = builder.add_extension(x509.SubjectAlternativeName([*alternatives, *addresses]), critical=False)
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(server, critical=False).add_extension(authority, critical=False)
    made = builder.sign(signer.key, SHA256()).public_bytes(Encoding.PEM)
    return (key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + made).decode()


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: dt.datetime,
    end: dt.datetime,
) -> x509.CertificateBuilder:
    numbered = x509.CertificateBuilder().serial_number(x509.random_serial_number())
    named = numbered.subject_name(subject).issuer_name(issuer).public_key(key)
    return named.not_valid_before(begin).not_valid_after(end)


def server_context(folder: Path, handshake_of: Callable[[str], Handshake | None]) -> ssl.SSLContext:
    """TLS for every host; ``handshake_of`` is asked for each connection what its host does."""
    good = _context(folder / "good.pem", _BOTH)
    others = {
        Handshake.STRANGER: _context(folder / f"{Handshake.STRANGER}.pem", _BOTH),
        Handshake.EXPIRED: _context(folder / f"{Handshake.EXPIRED}.pem", _BOTH),
        Handshake.WRONG_NAME: _context(folder / f"{Handshake.WRONG_NAME}.pem", _BOTH),
        Handshake.HTTP1: _context(folder / "good.pem", ("http/1.1",)),
    }

    def choose(connection: ssl.SSLObject, host: str | None, _: ssl.SSLContext) -> int | None:
        wanted = handshake_of(host or "")
        if wanted is Handshake.RESET:
            return int(ssl.ALERT_DESCRIPTION_INTERNAL_ERROR)
        if wanted is not None:
            connection.context = others[wanted]
        return None

    good.sni_callback = choose  # asyncio hands over SSLObject, not SSLSocket
    return good


def _context(pem: Path, protocols: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.set_alpn_protocols(list(protocols))
    return context
