"""What the engine is asked in the tests."""

import random

from services.rollout.engine import SamplingParameters

NUM_TOKENS = 24
LONG_TOKENS = 400
NUM_SAMPLES = 8
SAMPLINGS = (
    SamplingParameters(temperature=1.0, top_p=1.0, max_new_tokens=NUM_TOKENS),
    SamplingParameters(temperature=0.7, top_p=1.0, max_new_tokens=NUM_TOKENS),
    SamplingParameters(temperature=1.0, top_p=0.5, max_new_tokens=NUM_TOKENS),
)

_RANDOM = random.Random(3)
PROMPTS = tuple(tuple(_RANDOM.randrange(1, 64) for _ in range(length)) for length in (1, 2, 5, 9, 9, 17, 30, 63))
