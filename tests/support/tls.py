"""Certificates for nodes, made by openssl."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path


def _openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)


def make_tls(home: Path, hosts: Iterable[str] = ("127.0.0.1",)) -> tuple[str, str, str]:
    """PEM files of an authority, and of a certificate and key for nodes at these addresses."""
    ca, cert, key = (str(home / name) for name in ("ca.pem", "node.pem", "node.key"))
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(home / "ca.key"), "-out", ca,
             "-days", "2", "-subj", "/CN=test ca")  # fmt: skip
    _openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", str(home / "node.csr"),
             "-subj", "/CN=test node")  # fmt: skip
    (home / "ext").write_text(f"subjectAltName={','.join(f'IP:{host}' for host in hosts)}\n")
    _openssl("x509", "-req", "-in", str(home / "node.csr"), "-CA", ca, "-CAkey", str(home / "ca.key"),
             "-CAcreateserial", "-out", cert, "-days", "2", "-extfile", str(home / "ext"))  # fmt: skip
    return ca, cert, key
