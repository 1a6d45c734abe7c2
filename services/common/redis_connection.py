"""Opens the Redis client and runs the Lua scripts that make each operation of queue and ledger atomic."""

import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from services.common.errors import ConfigError, UnavailableError

RedisReply = int | bytes | list["RedisReply"] | None
"""What a Lua script may return."""

_SCRIPT_FOLDER = Path(__file__).parent / "lua"
_NUM_ATTEMPTS = 4
_FIRST_PAUSE_SECONDS = 0.1


def open_redis(url: str, *, timeout_seconds: float = 5.0) -> redis.Redis:
    """A client of a server that has answered; it may be used by many threads.

    Args:
        url: redis://, rediss:// or unix:// with an optional password.
        timeout_seconds: most time to connect and most time to wait for one reply.

    Raises:
        ConfigError: the URL is none.
        UnavailableError: nothing answers there, or it refuses the password.
    """
    try:
        client = redis.Redis.from_url(
            url,
            socket_connect_timeout=timeout_seconds,
            socket_timeout=timeout_seconds,
            protocol=2,
            # A repeated claim would lose the entries of the first one, so only run() below repeats.
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise ConfigError(f"redis.url is {redact_url(url)!r}: {error}; write redis://:password@host:port") from error
    try:
        client.ping()
    except redis.RedisError as error:
        client.close()
        raise _unavailable(url, error) from error
    return client


def redact_url(url: str) -> str:
    """The URL with its password replaced, fit for logs and messages."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return "(not a URL)"
    if password is None:
        return url
    user_and_host = parts.netloc.rpartition("@")
    user = user_and_host[0].partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}:***@{user_and_host[2]}"))


class RedisScript:
    """One Lua script, run atomically by the server."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._script = client.register_script((_SCRIPT_FOLDER / f"{name}.lua").read_text())
        self._name = name

    def run(self, *, keys: Sequence[str], arguments: Sequence[str | int | float | bytes]) -> RedisReply:
        """The script's reply; repeats it over a short loss of the connection, so running it twice must be harmless.

        Raises:
            UnavailableError: the server stays unreachable, or cannot run the script.
        """
        pause_seconds = _FIRST_PAUSE_SECONDS
        for _ in range(_NUM_ATTEMPTS - 1):
            try:
                return self.run_once(keys=keys, arguments=arguments)
            except UnavailableError:
                time.sleep(pause_seconds)
                pause_seconds *= 3
        return self.run_once(keys=keys, arguments=arguments)

    def run_once(self, *, keys: Sequence[str], arguments: Sequence[str | int | float | bytes]) -> RedisReply:
        """The script's reply, or an error as soon as the connection is lost; the script may have run then.

        Raises:
            UnavailableError: the server cannot be reached, or cannot run the script.
        """
        try:
            reply: RedisReply = self._script(keys=list(keys), args=list(arguments))
        except redis.RedisError as error:
            raise UnavailableError(
                f"Redis does not run {self._name}: {error}; wanted a reply, check that the server at redis.url "
                "is up, is Redis 6.2 or Valkey, and has memory and disk"
            ) from error
        return reply


def _unavailable(url: str, error: redis.RedisError) -> UnavailableError:
    return UnavailableError(
        f"Redis at {redact_url(url)} does not answer: {error}; wanted a Redis 6.2 or Valkey server there, start it, "
        'correct redis.url, or set redis.url="" to use the embedded one'
    )
