"""What a valid recipe asks for that will have no effect, or another one than its author may think. Pure."""

from services.common.config.recipe import Recipe


def recipe_warnings(recipe: Recipe) -> list[str]:
    """One line each, with the key, what it does as it is set, and what to set instead; empty when all is plain."""
    trainer, algorithm = recipe.trainer, recipe.trainer.algorithm
    warnings = []
    if trainer.updates_per_step == 1 and algorithm.old_logprobs == "trainer":
        warnings.append(
            'trainer.updates_per_step is 1 with trainer.algorithm.old_logprobs "trainer": the ratio is always 1 and '
            'no clip takes effect; set updates_per_step to 2 or more, or old_logprobs="engine" with '
            'importance.mode="off" to clip against the policy that drew the tokens'
        )
    kl = algorithm.kl
    if kl.placement == "loss" and kl.estimator == "k1" and not kl.unbiased:
        warnings.append(
            'trainer.algorithm.kl.estimator is "k1" in the loss, where its mean gradient is zero: nothing pulls '
            'towards the reference; set kl.estimator="k3" or kl.unbiased=true'
        )
    if algorithm.type == "gspo_token" and not _has_token_advantages(recipe):
        warnings.append(
            'trainer.algorithm.type is "gspo_token", but all tokens of a sample have one advantage, with which it '
            'equals "gspo"; set kl.placement="reward" or discount below 1 for advantages that differ by token'
        )
    return warnings


def _has_token_advantages(recipe: Recipe) -> bool:
    algorithm = recipe.trainer.algorithm
    return algorithm.kl.placement == "reward" or algorithm.discount < 1
