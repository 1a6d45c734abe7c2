"""Notices a grader that gives nobody credit: usually the label, the template or the grader is wrong, not the policy."""

import logging
import threading
from dataclasses import dataclass

from services.common.records import Score
from services.reward.metrics import RewardMetrics, grader_family
from services.reward.worker_process import GradeItem

logger = logging.getLogger(__name__)

_BOXES = ("\\boxed", "\\fbox")


@dataclass
class _Window:
    num_samples: int = 0
    num_boxed: int = 0
    num_positive: int = 0
    example: GradeItem | None = None
    example_extracted: str = ""


class ZeroScoreWatch:
    """Looks at every grader's samples window by window. Thread-safe.

    A window without a positive score, in which some responses have boxed answers, counts in
    reward_all_zero_windows_total; the first of a row is logged with an example.
    """

    def __init__(self, metrics: RewardMetrics, *, window_samples: int) -> None:
        self._metrics = metrics
        self._window_samples = window_samples
        self._windows: dict[str, _Window] = {}
        self._suspects: set[str] = set()
        self._lock = threading.Lock()

    def observe(self, item: GradeItem, score: Score) -> None:
        """Counts one graded sample."""
        with self._lock:
            family = grader_family(item.grader)
            window = self._windows.setdefault(family, _Window())
            window.num_samples += 1
            window.num_positive += score.value > 0
            if window.num_positive == 0 and any(box in item.response for box in _BOXES):
                window.num_boxed += 1
                window.example, window.example_extracted = item, score.extracted
            if window.num_samples < self._window_samples:
                return
            del self._windows[family]
            self._judge(family, window)

    def _judge(self, grader: str, window: _Window) -> None:
        is_suspect = window.num_positive == 0 and window.example is not None
        self._metrics.is_all_zero.labels(grader=grader).set(is_suspect)
        if not is_suspect:
            self._suspects.discard(grader)
            return
        assert window.example
        self._metrics.all_zero_windows.labels(grader=grader).inc()
        if grader in self._suspects:
            return
        self._suspects.add(grader)
        logger.warning(
            "every score is zero although responses have boxed answers; check the grader, the labels and whether the "
            "responses end their thinking (deepscaler-like graders want </think>)",
            extra={
                "grader": grader,
                "num_samples": window.num_samples,
                "num_boxed": window.num_boxed,
                "example_extracted": window.example_extracted[:100],
                "example_label": window.example.label[:100],
                "example_response_end": window.example.response[-100:],
            },
        )
