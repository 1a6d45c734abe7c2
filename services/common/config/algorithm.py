"""The section trainer.algorithm: which policy loss, on which advantages, corrected and aggregated how.

Each type has a section class of its own, whose defaults are those of its paper; a key that a type does not read is
unknown to it. A setting that would change nothing is refused, so that no option does nothing in silence.
"""

from typing import Literal

from pydantic import Field, model_validator

from services.common.config.base import NonNegativeFloat, NonNegativeInt, PositiveFloat, Section

Level = Literal["token", "sequence", "geometric"]
Baseline = Literal["group_mean", "leave_one_out", "none"]
Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum"]


def _refuse_idle(section: Section, *, switch: str, but: tuple[str, ...] = ()) -> None:
    """A section that is switched off keeps its defaults: nobody shall believe that a key does something.

    Raises:
        ValueError: a key differs from its default.
    """
    if getattr(section, switch) != "off":
        return
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if name not in (switch, *but) and value != field.default:
            raise ValueError(f'{name} is {value}, but {switch} is "off", so it does nothing; set {switch} or leave it')


def _check_bounds(lower: float, upper: float) -> None:
    if not lower <= 1 <= upper:
        raise ValueError(
            f"lower is {lower} and upper {upper}, but the ratio of equal probabilities is 1; set lower to at most 1 "
            "and upper to at least 1"
        )


class KlConfig(Section):
    """The pull towards the reference: the policy as it was when the run began."""

    placement: Literal["off", "loss", "reward"] = "off"
    """Where the divergence counts: nowhere, in the loss, or as a penalty that lowers the reward of each token."""
    estimator: Literal["k1", "k2", "k3", "low_variance"] = "k3"
    """How a token's divergence is estimated. k1 needs `unbiased` to have any effect as a loss."""
    coefficient: PositiveFloat = 1e-3
    """Weight of the divergence."""
    unbiased: bool = False
    """Weigh the estimate in the loss by the policy's probability over the old one's (arXiv 2512.02556)."""

    @model_validator(mode="after")
    def _check(self) -> "KlConfig":
        _refuse_idle(self, switch="placement")
        if self.placement == "reward" and self.unbiased:
            raise ValueError(
                'unbiased is true with placement "reward", where the policy is still the old one and the weight 1; '
                'set unbiased=false or placement="loss"'
            )
        return self


class ImportanceConfig(Section):
    """Weights that correct the mismatch between the trainer's probabilities and the engine's."""

    mode: Literal["off", "truncate", "clip", "mask"] = "truncate"
    """What happens to a ratio out of bounds: cut at `upper` (TIS), clipped to both bounds, or the weight is 0
    (IcePop, arXiv 2510.18855), in which case the token still counts in the denominator."""
    level: Level = "token"
    """The ratio of each token, the product over its sequence, or the geometric mean over its sequence."""
    lower: NonNegativeFloat = 0.0
    """Lower bound of clip and mask."""
    upper: PositiveFloat = 2.0
    """Upper bound."""
    normalize: bool = False
    """Divide the weights by their mean over the whole optimizer step: over tokens, or sequences at the other levels."""

    @model_validator(mode="after")
    def _check(self) -> "ImportanceConfig":
        _refuse_idle(self, switch="mode")
        _check_bounds(self.lower, self.upper)
        if self.mode == "truncate" and self.lower:
            raise ValueError(
                f'lower is {self.lower}, but mode "truncate" only cuts above; set lower=0, or mode="clip" or "mask"'
            )
        return self


class RejectionConfig(Section):
    """Tokens and sequences that mismatch too much to be trained on; they are in no denominator."""

    level: Literal["off"] | Level = "off"
    """What is tested, and rejected as a whole: a token by its ratio, or a sequence by the product or the geometric mean
    of its ratios."""
    lower: NonNegativeFloat = 0.5
    """Smallest ratio accepted."""
    upper: PositiveFloat = 2.0
    """Largest ratio accepted."""
    veto: NonNegativeFloat = 0.0
    """A token ratio below this rejects the whole sequence, at any level and when it is off; 0 vetoes nothing."""

    @model_validator(mode="after")
    def _check(self) -> "RejectionConfig":
        _refuse_idle(self, switch="level", but=("veto",))
        _check_bounds(self.lower, self.upper)
        if self.veto >= 1:
            raise ValueError(f"veto is {self.veto}, which rejects sequences that match; set it below 1, such as 1e-4")
        return self


class AlgorithmSection(Section):
    """What every type has."""

    type: str
    """Name of the policy loss."""
    baseline: Baseline = "group_mean"
    """What is taken off a reward: the mean of its group, the mean of its group's other samples, or nothing."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""
    whiten: bool = False
    """Bring the advantages of all tokens of a step to mean 0 and variance 1."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Weight of a reward or penalty for each token that it lies ahead."""
    aggregation: Aggregation = "token_mean"
    """Mean over tokens; mean over sequences of means over tokens; or mean over sequences of sums over tokens, divided
    by `divisor_tokens`."""
    divisor_tokens: NonNegativeInt = 0
    """The constant of sequence_sum; 0 takes rollout.sampling.max_new_tokens."""
    old_logprobs: Literal["trainer", "engine"] = "trainer"
    """Whose log-probabilities the ratio compares to, both at the sampling temperature: the trainer's before the step's
    first update, or the engine's, which excludes importance weights."""
    max_divergence: NonNegativeFloat = 0.0
    """Off-policy sequence masking (arXiv 2512.02556): samples with a negative advantage count as 0 once their mean
    log-probability has fallen by more, in nats; 0 switches it off."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    kl: KlConfig = KlConfig()
    """The pull towards the reference."""
    importance: ImportanceConfig = ImportanceConfig()
    """Importance weights between trainer and engine."""
    rejection: RejectionConfig = RejectionConfig()
    """Rejection by the same mismatch."""

    @model_validator(mode="after")
    def _check(self) -> "AlgorithmSection":
        if self.normalize_std and self.baseline != "group_mean":
            raise ValueError(
                f'normalize_std is true with baseline "{self.baseline}", but only "group_mean" has a standard '
                'deviation; set normalize_std=false or baseline="group_mean"'
            )
        if self.divisor_tokens and self.aggregation != "sequence_sum":
            raise ValueError(
                f'divisor_tokens is {self.divisor_tokens}, but aggregation "{self.aggregation}" has no constant; set '
                'divisor_tokens=0 or aggregation="sequence_sum"'
            )
        if self.old_logprobs == "engine" and self.importance.mode != "off":
            raise ValueError(
                f'old_logprobs is "engine" with importance.mode "{self.importance.mode}"; the ratio already contains '
                'the correction, set importance.mode="off"'
            )
        return self


class ClippedSection(AlgorithmSection):
    """The clipped surrogate with token ratios."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: PositiveFloat = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: NonNegativeFloat = 0.0
    """Above 1, a token with a negative advantage loses at most so many times the advantage (arXiv 1912.09729); 0: no
    limit."""

    @model_validator(mode="after")
    def _check_dual_clip(self) -> "ClippedSection":
        if 0 < self.dual_clip <= 1:
            raise ValueError(
                f"dual_clip is {self.dual_clip}, which would cut tokens that have not moved; set it above 1, such as "
                "3, or to 0"
            )
        return self


class GrpoConfig(ClippedSection):
    """GRPO (arXiv 2402.03300)."""

    type: Literal["grpo"] = "grpo"
    """Token ratios, group-normalised advantages, mean over sequences."""
    aggregation: Aggregation = "sequence_mean"


class DapoConfig(ClippedSection):
    """DAPO (arXiv 2503.14476); its dynamic sampling and overlong rules are keys of the rollout section."""

    type: Literal["dapo"] = "dapo"
    """One of grpo, dapo, dr_grpo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline, gspo, gspo_token and cispo;
    each has defaults of its own. DAPO: token ratios clipped higher above than below, mean over tokens."""
    clip_high: PositiveFloat = 0.28


class DrGrpoConfig(ClippedSection):
    """Dr. GRPO (arXiv 2503.20783)."""

    type: Literal["dr_grpo"] = "dr_grpo"
    """No division by the group's deviation, none by the length of a response."""
    normalize_std: bool = False
    aggregation: Aggregation = "sequence_sum"


class RlooConfig(ClippedSection):
    """RLOO (arXiv 2402.14740), with clipped token ratios so that a step may have several updates."""

    type: Literal["rloo"] = "rloo"
    """The baseline leaves the sample itself out; token log-probabilities of a sample are summed."""
    baseline: Baseline = "leave_one_out"
    normalize_std: bool = False
    aggregation: Aggregation = "sequence_sum"


class ReinforcePlusPlusConfig(ClippedSection):
    """REINFORCE++ (arXiv 2501.03262)."""

    type: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    """Rewards without a group baseline, whitened over the step."""
    baseline: Baseline = "none"
    normalize_std: bool = False
    whiten: bool = True


class ReinforcePlusPlusBaselineConfig(ClippedSection):
    """REINFORCE++ with the group's mean as baseline (arXiv 2501.03262)."""

    type: Literal["reinforce_plus_plus_baseline"] = "reinforce_plus_plus_baseline"
    """Centred rewards, whitened over the step."""
    normalize_std: bool = False
    whiten: bool = True


class SequenceClippedSection(AlgorithmSection):
    """The clipped surrogate with one ratio a sequence."""

    clip_low: float = Field(default=1e-4, gt=0, lt=1)
    """The sequence's ratio is clipped below at 1 - clip_low; the default is that of the GLM-4.5 recipes."""
    clip_high: PositiveFloat = 2e-4
    """The sequence's ratio is clipped above at 1 + clip_high."""
    aggregation: Aggregation = "sequence_mean"


class GspoConfig(SequenceClippedSection):
    """GSPO (arXiv 2507.18071)."""

    type: Literal["gspo"] = "gspo"
    """One ratio a sequence, mean over sequences."""


class GspoTokenConfig(SequenceClippedSection):
    """GSPO-token (arXiv 2507.18071, section 4.3)."""

    type: Literal["gspo_token"] = "gspo_token"
    """The sequence's ratio with each token's own gradient, for advantages that differ by token."""


class CispoConfig(AlgorithmSection):
    """CISPO (arXiv 2506.13585)."""

    type: Literal["cispo"] = "cispo"
    """The clipped ratio is a weight on log-probabilities; no token loses its gradient."""
    clip_low: float = Field(default=1.0, gt=0, le=1)
    """The weight is at least 1 - clip_low; the default sets no lower bound."""
    clip_high: PositiveFloat = 4.0
    """The weight is at most 1 + clip_high."""


AlgorithmConfig = (
    GrpoConfig
    | DapoConfig
    | DrGrpoConfig
    | RlooConfig
    | ReinforcePlusPlusConfig
    | ReinforcePlusPlusBaselineConfig
    | GspoConfig
    | GspoTokenConfig
    | CispoConfig
)
"""The section of any type."""


def with_algorithm_type(value: object) -> object:
    """A table without a type is one of the default type's."""
    return {"type": DapoConfig().type, **value} if isinstance(value, dict) else value
