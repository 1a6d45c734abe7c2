"""Chooses free TCP ports, and tells whether a port is free."""

import socket
from collections.abc import Callable

from services.common.errors import ConfigError

# Below the range that Linux takes outgoing connections from (32768 on), so that no connection grabs a port
# between the moment it is chosen and the moment its service binds it.
_FIRST, _LAST = 20000, 32000


def is_port_free(host: str, port: int) -> bool:
    """Whether a server could bind the port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class PortChooser:
    """Hands out ports, each once.

    Args:
        start: where the search begins; different processes should begin elsewhere.
        is_free: (host, port) -> whether the port can be bound.
    """

    def __init__(self, *, start: int, is_free: Callable[[str, int], bool] = is_port_free) -> None:
        self._next = _FIRST + start % (_LAST - _FIRST)
        self._is_free = is_free
        self._taken: dict[int, str] = {}

    def choose(self, host: str, *, configured: int, key: str) -> int:
        """The configured port when it is not 0, else a free one.

        Args:
            key: the recipe's key of the port, for the message.

        Raises:
            ConfigError: the configured port is taken, or no port is free.
        """
        if configured:
            return self._check(host, configured, key)
        for _ in range(_LAST - _FIRST):
            port = self._next
            self._next = _FIRST + (self._next + 1 - _FIRST) % (_LAST - _FIRST)
            if port not in self._taken and self._is_free(host, port):
                self._taken[port] = key
                return port
        raise ConfigError(f"no port from {_FIRST} to {_LAST} is free on {host}; set {key} to a free one")

    def _check(self, host: str, port: int, key: str) -> int:
        if port in self._taken:
            raise ConfigError(
                f"{key} is {port}, which {self._taken[port]} uses as well; give each its own port, or 0 for a free one"
            )
        if not self._is_free(host, port):
            raise ConfigError(
                f"{key} is {port}, but port {port} on {host} is taken by another process; "
                f"end that process, set {key} to a free port, or to 0 to have one chosen"
            )
        self._taken[port] = key
        return port
