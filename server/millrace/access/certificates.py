"""TLS of the two ports: contexts whose certificates are read again when their files change, and the names of clients.

Rule: a certificate and its key are loaded together into a new context before the ports get them, so that a
half-written pair changes nothing: the earlier one stays, and the server's health says so.
"""

from __future__ import annotations

import ssl
from asyncio import BaseTransport
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from millrace.net.refusals import Port
from millrace.protocol import MillraceError
from millrace.run.config import ConfigError, Security, ServerSection, admin_security, listen_security

log = structlog.get_logger()


class CertificateError(MillraceError):
    """A certificate that cannot be used."""

    code = "certificate"


def names_of(transport: BaseTransport) -> frozenset[str]:
    """The verified names in the client's certificate: `CN=NAME` of its subject, and `DNS:NAME` and the like of its
    alternative names; none without a certificate."""
    certificate: dict[str, Any] = transport.get_extra_info("peercert") or {}
    subject = [f"CN={value}" for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return frozenset([*subject, *(f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ()))])


class Certificates:
    """The TLS contexts of a server. `problem` says why the newest files do not count."""

    def __init__(self, server: ServerSection) -> None:
        self._guards: Final[Mapping[Port, Security]] = {
            "listen": listen_security(server),
            "admin": admin_security(server),
        }
        self.problem: str | None = None
        self._seen = self._signatures()
        self._contexts = {port: _new(guard) for port, guard in self._guards.items() if guard.certificate is not None}

    def context(self, port: Port) -> ssl.SSLContext | None:
        """The context of a port; None without TLS."""
        return self._contexts.get(port)

    def __len__(self) -> int:
        return len({guard.certificate for guard in self._guards.values() if guard.certificate is not None})

    def reload(self) -> None:
        """Read the files again: later connections use them. Raises CertificateError, and the earlier ones stay."""
        try:
            self._seen = self._signatures()
            for port in self._contexts:
                _new(self._guards[port])
            for port, context in self._contexts.items():
                _load(context, self._guards[port])
        except CertificateError as error:
            log.error("the certificates cannot be read: the earlier ones are still used", reason=error.text)
            self.problem = f"certificates: {error.text}; the earlier ones are still used"
            raise
        if self._contexts:
            log.info("read the certificates again")
        self.problem = None

    def refresh(self) -> None:
        """Read the files again if they have changed."""
        if self._signatures() != self._seen:
            with suppress(CertificateError):
                self.reload()

    def _signatures(self) -> list[tuple[int, ...] | None]:
        files = [(guard.certificate, guard.key, guard.client_ca) for guard in self._guards.values()]
        return [signature(path) for paths in files for path in paths if path is not None]


def signature(path: Path) -> tuple[int, ...] | None:
    """Changes with the file's contents; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _new(guard: Security) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, guard)
    return context


def _load(context: ssl.SSLContext, guard: Security) -> None:
    assert guard.certificate is not None
    try:
        context.load_cert_chain(guard.certificate, guard.key)
    except (ssl.SSLError, OSError) as error:
        raise CertificateError(f"certificate {guard.certificate} with key {guard.key}: {error}") from None
    if guard.client_ca is not None:
        try:
            context.load_verify_locations(cafile=guard.client_ca)
        except (ssl.SSLError, OSError) as error:
            raise CertificateError(f"authority of client certificates {guard.client_ca}: {error}") from None
        context.verify_mode = ssl.CERT_OPTIONAL


def check_certificates(server: ServerSection) -> None:
    """ConfigError if a certificate and its key cannot be loaded together."""
    try:
        Certificates(server)
    except CertificateError as error:
        raise ConfigError([error.text]) from None
