"""The soft overlong penalty of DAPO (arXiv 2503.14476, eq. 13). Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OverlongPenalty:
    """A fall of the reward towards the token limit, so that a long answer is not punished all at once."""

    max_new_tokens: int
    """Tokens at which a response is cut, L_max of the paper."""
    buffer_tokens: int
    """Tokens before the limit over which the reward falls, L_cache of the paper; at most max_new_tokens, 0: none."""
    factor: float
    """How far the reward falls; the paper has 1."""

    def of(self, num_tokens: int) -> float:
        """What is added to the reward of a response: 0 up to the buffer, linear in it, -factor at the limit."""
        num_over = num_tokens - (self.max_new_tokens - self.buffer_tokens)
        if self.buffer_tokens == 0 or num_over <= 0:
            return 0.0
        return -self.factor * min(1.0, num_over / self.buffer_tokens)
