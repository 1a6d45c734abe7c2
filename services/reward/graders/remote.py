"""An HTTP service as a grader: POST {"prompt", "response", "label"}, answered by a number or {"score": number}."""

import json
import math
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from urllib.error import HTTPError, URLError
from urllib.request import HTTPErrorProcessor, OpenerDirector, ProxyHandler, Request, build_opener

from services.reward.scorer import Judgement, Rule

_MAX_REPLY_BYTES = 65536
_FIRST_PAUSE_SECONDS = 0.05
# Answers that ask to come again.
_RETRIED_STATUSES = frozenset((408, 425, 429, 500, 502, 503, 504))
_KEYS = ("score", "reward", "value")


class RemoteGrader:
    """A Grader with a bound on the time of each request, the number of requests and the size of the reply.

    A service that gives no usable answer is an error with a score of 0; it never raises.
    """

    def __init__(
        self, url: str, *, timeout_seconds: float, num_retries: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Connects to nothing yet.

        Args:
            timeout_seconds: for one request.
            num_retries: further requests after one without an answer, with pauses that double.
        """
        self._url = url
        self._timeout_seconds = timeout_seconds
        self._num_retries = num_retries
        self._sleep = sleep
        # No proxy of the environment, and no redirect to somewhere the recipe did not name.
        self._opener: OpenerDirector = build_opener(ProxyHandler({}), _NoRedirect())

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        body = json.dumps({"prompt": prompt, "response": response, "label": label}).encode()
        problem = ""
        for number in range(self._num_retries + 1):
            if number:
                self._sleep(_FIRST_PAUSE_SECONDS * 2 ** (number - 1))
            try:
                return _judgement(self._post(body))
            except HTTPError as error:
                problem = f"status {error.code}"
                if error.code not in _RETRIED_STATUSES:
                    break
            except (URLError, HTTPException, OSError) as error:
                problem = str(getattr(error, "reason", error))
        return _failure(f"{self._url} gave no answer ({problem}); tried {number + 1} times")

    def _post(self, body: bytes) -> bytes:
        request = Request(self._url, data=body, headers={"Content-Type": "application/json"}, method="POST")
        with self._opener.open(request, timeout=self._timeout_seconds) as reply:
            if not 200 <= reply.status < 300:
                raise HTTPError(self._url, reply.status, reply.reason, reply.headers, None)
            return bytes(reply.read(_MAX_REPLY_BYTES + 1))


class _NoRedirect(HTTPErrorProcessor):
    """Hands every reply on as it is."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:
        """The response."""
        return response

    https_response = http_response


def _judgement(reply: bytes) -> Judgement:
    if len(reply) > _MAX_REPLY_BYTES:
        return _failure(f"the reply is longer than {_MAX_REPLY_BYTES} bytes")
    try:
        value = json.loads(reply)
    except (ValueError, RecursionError):
        return _failure(f"the reply is {reply[:60]!r}; wanted JSON")
    extracted = ""
    if isinstance(value, dict):
        extracted = str(value.get("extracted", ""))[:1000]
        value = next((value[key] for key in _KEYS if key in value), None)
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return Judgement(value=float(value), rule=Rule.REMOTE, extracted=extracted)
    return _failure(f"the reply is {reply[:60]!r}; wanted a finite number or an object with a score")


def _failure(error: str) -> Judgement:
    return Judgement(value=0.0, rule=Rule.ERROR, error=error)
