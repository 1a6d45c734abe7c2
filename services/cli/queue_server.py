"""The process that runs the embedded queue server: `python -m services.cli.queue_server FOLDER URL_FILE`."""

import os
import sys
import threading
from pathlib import Path

from services.common.embedded_valkey import EmbeddedValkey
from services.common.errors import FurlongError
from services.common.service_process import stop_on_signals

_POLL_SECONDS = 0.2


def serve(folder: Path, url_path: Path, stop: threading.Event) -> None:
    """Runs a server over the folder until stop is set; url_path holds its URL, for its owner only, once it answers.

    Raises:
        FurlongError: the server cannot start, or ended.
    """
    valkey = EmbeddedValkey(folder=folder)
    valkey.start()
    try:
        _write_secret(url_path, valkey.url)
        while not stop.wait(_POLL_SECONDS):
            if valkey.process_id is None:
                raise FurlongError(f"valkey-server ended; wanted it to run until the end; see {valkey.log_file}")
    finally:
        url_path.unlink(missing_ok=True)
        valkey.stop()


def _write_secret(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    partial.replace(path)


def main() -> None:
    """Serves until SIGTERM; exits with 1 when the server ends before."""
    stop = stop_on_signals()
    try:
        serve(Path(sys.argv[1]), Path(sys.argv[2]), stop)
    except FurlongError as error:
        print(f"furlong: error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
