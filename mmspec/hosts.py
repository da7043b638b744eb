"""Addresses to serve at."""

from __future__ import annotations

import ipaddress
import socket

from .errors import InputError


def is_loopback(host: str) -> bool:
    """True if a host's name or address is a loopback one."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_address(host: str, port: int | None) -> None:
    """Raise an `InputError` if nothing can listen there; servers would say it in their own way."""
    try:
        family, *_, address = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise taken(host, port, error) from error


def taken(host: str, port: int | None, error: OSError) -> InputError:
    """The error of an address that can't be had."""
    why = error.strerror or error
    return InputError(f"can't serve at {host}:{port}: {why}; choose another --host or --port")
