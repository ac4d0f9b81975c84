"""The names in a client's certificate, and TLS contexts whose certificates are read again when they change."""

from __future__ import annotations

from asyncio import BaseTransport
from typing import Any


def names_of(transport: BaseTransport) -> frozenset[str]:
    """The verified names in the client's certificate: `CN=NAME` of its subject, and `DNS:NAME` and the like of its
    alternative names; none without a certificate."""
    certificate: dict[str, Any] = transport.get_extra_info("peercert") or {}
    subject = [f"CN={value}" for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return frozenset([*subject, *(f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ()))])
