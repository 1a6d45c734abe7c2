"""A worker whose grader does what the response says; the pool's tests run it as a process."""

import os
import socket
import sys
import time

from services.reward.scorer import Judgement, Rule
from services.reward.worker import serve


class MisbehavingGrader:
    """Hangs, dies, eats memory or raises on demand; else scores the response's length."""

    def grade(self, *, prompt, response, label):
        if response == "hang":
            while True:
                pass
        if response.startswith("sleep "):
            time.sleep(float(response.removeprefix("sleep ")))
        if response == "die":
            os._exit(3)
        if response.startswith("die once "):
            self._die_once(response.removeprefix("die once "))
        if response == "eat":
            bytearray(1 << 40)
        if response == "raise":
            raise ValueError("no such answer")
        if response == "open":
            with open("/dev/null") as file:
                file.read()
        if response == "connect":
            socket.socket().close()
        if response == "print":
            os.write(1, b"noise on standard output\n")
        return Judgement(value=float(len(response)), rule=Rule.STRING, extracted=response)

    def _die_once(self, marker):
        if not os.path.exists(marker):
            with open(marker, "w"):
                pass
            os._exit(3)


if __name__ == "__main__":
    serve({"boxed": MisbehavingGrader()}, is_isolated="--isolated" in sys.argv)
