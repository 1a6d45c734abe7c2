import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from services.reward.graders.remote import RemoteGrader
from services.reward.scorer import Rule


class Service:
    """An HTTP service that answers with the given (status, body) one after the other; the last one for good."""

    def __init__(self, *answers, delay_seconds=0.0):
        self.requests = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.requests.append(json.loads(body))
                time.sleep(delay_seconds)
                status, text = answers[min(len(service.requests), len(answers)) - 1]
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}/score"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def grade(url, *, timeout_seconds=5.0, num_retries=2):
    pauses = []
    grader = RemoteGrader(url, timeout_seconds=timeout_seconds, num_retries=num_retries, sleep=pauses.append)
    return grader.grade(prompt="p", response="r", label="l"), pauses


@pytest.mark.parametrize(
    ("body", "value", "extracted"),
    [
        ("0.5", 0.5, ""),
        ("true", 1.0, ""),
        ('{"score": 0.25, "extracted": "34"}', 0.25, "34"),
        ('{"reward": -1}', -1.0, ""),
    ],
)
def test_score_of_the_reply(body, value, extracted):
    with Service((200, body)) as service:
        judgement, _ = grade(service.url)
    assert (judgement.value, judgement.rule, judgement.extracted) == (value, Rule.REMOTE, extracted)
    assert service.requests == [{"prompt": "p", "response": "r", "label": "l"}]


def test_busy_service_is_asked_again_with_longer_pauses():
    with Service((503, ""), (429, ""), (200, "1")) as service:
        judgement, pauses = grade(service.url)
    assert (judgement.value, pauses) == (1.0, [0.05, 0.1])


@pytest.mark.parametrize(("status", "num_requests"), [(500, 3), (404, 1), (302, 1)])
def test_service_that_gives_no_answer_is_an_error(status, num_requests):
    with Service((status, "")) as service:
        judgement, _ = grade(service.url)
    assert (judgement.value, judgement.rule) == (0.0, Rule.ERROR)
    assert f"status {status}" in judgement.error
    assert len(service.requests) == num_requests


@pytest.mark.parametrize(
    "body", ["", "no", "null", "[1]", '"1"', "{}", '{"score": "1"}', "NaN", "Infinity", "1" * 70_000, "[" * 60_000]
)
def test_reply_without_a_finite_number_is_an_error(body):
    with Service((200, body)) as service:
        judgement, _ = grade(service.url)
    assert (judgement.value, judgement.rule) == (0.0, Rule.ERROR)
    assert judgement.error.startswith("the reply is")


def test_slow_service_costs_its_time_limit():
    with Service((200, "1"), delay_seconds=0.5) as service:
        started = time.monotonic()
        judgement, _ = grade(service.url, timeout_seconds=0.1, num_retries=1)
        assert time.monotonic() - started < 0.45
    assert judgement.rule == Rule.ERROR
    assert "timed out" in judgement.error
    assert "tried 2 times" in judgement.error


def test_service_that_is_not_there_is_an_error():
    with Service((200, "1")) as service:
        url = service.url
    judgement, pauses = grade(url)
    assert (judgement.rule, len(pauses)) == (Rule.ERROR, 2)
