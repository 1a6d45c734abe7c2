"""The sections of the rollout and the reward service."""

from typing import Literal

from pydantic import Field, model_validator

from services.common.config.base import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)
from services.common.config.run import EndpointConfig


class SamplingConfig(Section):
    """How tokens are drawn for training."""

    temperature: PositiveFloat = 1.0
    """Softmax temperature, the same in the engine and the trainer."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus mass."""
    max_new_tokens: PositiveInt = 16
    """Most tokens of one response."""


class EvaluationConfig(Section):
    """Held-out evaluation."""

    temperature: NonNegativeFloat = 1.0
    """Softmax temperature; 0 is greedy."""
    every_steps: NonNegativeInt = 5
    """Evaluate after every so many steps; 0: only when asked."""
    num_prompts: PositiveInt = 256
    """Held-out prompts of an evaluation within the run."""
    samples_per_prompt: int = Field(default=1, ge=1, le=1024)
    """Responses to each held-out prompt; above 1, pass@k is reported for k = 1, 2, 4, … and this number."""
    pass_threshold: float = 1.0
    """A response passes when its reward is at least this."""


class OverlongConfig(Section):
    """What becomes of responses that come near the token limit or reach it."""

    penalty_buffer_tokens: NonNegativeInt = 0
    """The reward falls linearly over so many last tokens before `sampling.max_new_tokens` (arXiv 2503.14476, eq. 13);
    0 with penalty_factor 0: no penalty."""
    penalty_factor: float = Field(default=0.0, ge=0)
    """How far the reward has fallen at the limit."""
    filter: bool = False
    """Leave truncated responses out of the loss; their rewards stay in their groups' statistics."""


class SpeculationConfig(Section):
    """EAGLE with the model's MTP layer as the draft."""

    enabled: bool = True
    """Whether to speculate."""
    num_steps: PositiveInt = 1
    """Draft forward passes per verify step."""
    topk: PositiveInt = 1
    """Branches of the draft tree."""
    num_draft_tokens: PositiveInt = 2
    """Tokens verified at once, the known one included."""


class EngineConfig(Section):
    """The SGLang engine of a rollout service."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Where it runs."""
    tp: PositiveInt = 1
    """Tensor-parallel ranks of the engine."""
    max_running_requests: PositiveInt = 256
    """Requests decoded together."""
    context_length: PositiveInt = 2048
    """Most tokens of prompt and response together."""
    max_total_tokens: PositiveInt = 65536
    """Tokens the key-value cache holds."""
    start_timeout_seconds: PositiveFloat = 300.0
    """Time the engine has to start."""
    speculation: SpeculationConfig = SpeculationConfig()
    """Speculative decoding."""


class RolloutConfig(Section):
    """The rollout service."""

    endpoint: EndpointConfig = EndpointConfig()
    """Where it listens."""
    replicas: PositiveInt = 1
    """Rollout services."""
    prompts_per_step: PositiveInt = 32
    """Groups of one training step."""
    samples_per_prompt: PositiveInt = 8
    """Samples of one group."""
    max_refills: NonNegativeInt = 1
    """How many times `prompts_per_step` further prompts may replace dropped groups of a step. Only as many prompts
    start as groups are missing."""
    over_sampling_prompts: NonNegativeInt = 0
    """Further prompts that a step starts at once, before any group is dropped, so that dropped groups need no second
    wave; at most what `max_refills` allows. Once `prompts_per_step` groups are accepted the rest is stopped, and
    generated anew for the next step. Groups of short responses are done first, so a large number favours them."""
    when_short: Literal["train_short", "error"] = "train_short"
    """What a step does that is still short after its refills: train on what it has, or end the run."""
    drop_equal_rewards: bool = True
    """Drop groups whose samples all have exactly the same reward: they carry no gradient."""
    overlong: OverlongConfig = OverlongConfig()
    """Responses near the token limit."""
    max_lag_versions: NonNegativeInt = 0
    """Versions that the oldest token of a group may be behind the policy trained; 0 is on policy."""
    sampling: SamplingConfig = SamplingConfig()
    """Sampling for training."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out evaluation."""
    engine: EngineConfig = EngineConfig()
    """The engine."""

    @property
    def max_prompts_per_step(self) -> int:
        """Most prompts spent on one step, refills included."""
        return self.prompts_per_step * (1 + self.max_refills)

    @model_validator(mode="after")
    def _check_over_sampling(self) -> "RolloutConfig":
        allowed = self.max_prompts_per_step - self.prompts_per_step
        if self.over_sampling_prompts > allowed:
            raise ValueError(
                f"over_sampling_prompts is {self.over_sampling_prompts}, but prompts_per_step {self.prompts_per_step} "
                f"x max_refills {self.max_refills} allows {allowed} further prompts; set it to {allowed} or less, or "
                "raise max_refills"
            )
        return self


class RewardConfig(Section):
    """The reward service."""

    endpoint: EndpointConfig = EndpointConfig()
    """Where it listens; replica i listens two ports further per replica."""
    replicas: PositiveInt = 1
    """Reward services; calls go to them in turns."""
    grader: str = "boxed"
    """Grader of the run: boxed, math, dapo, f1, gpqa, exact, remote:URL, package.module:function, or a weighted mix
    such as mix:0.9*boxed,0.1*format."""
    external_graders: tuple[str, ...] = ()
    """Remote and custom graders that may be used; workers lose their isolation for them."""
    require_think_end: bool = False
    """The boxed grader gives a response no credit in which no thinking ends."""
    require_end_token: bool = True
    """A response cut at the token limit scores 0 whatever it contains."""
    require_single_box: bool = True
    """A response with several boxes after its thinking scores 0; otherwise the last box counts."""
    workers: PositiveInt = 1
    """Worker processes of a replica."""
    limit_seconds: PositiveFloat = 1.0
    """Most time a grader may take for one sample; the worker is killed then."""
    remote_timeout_seconds: PositiveFloat = 0.3
    """Most time for one request of a remote grader; requests and retries together stay within `limit_seconds`."""
    remote_retries: NonNegativeInt = 2
    """Further requests of a remote grader after one without a usable answer."""
    memory_limit_mb: PositiveInt = 1024
    """Most address space of a worker above what it needs to start."""
    max_batch_items: PositiveInt = 4096
    """Most items of one ScoreBatch."""
    max_calls: PositiveInt = 112
    """Most calls that wait for scores at once in a replica; each holds a thread."""
    zero_window_samples: PositiveInt = 512
    """So many samples in a row without one positive score, though some have boxed answers, raise a warning."""
