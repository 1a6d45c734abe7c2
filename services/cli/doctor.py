"""`furlong doctor`: every need of a recipe beside what this machine has."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from services.cli.machine import Check, check_machine, look_at_machine
from services.cli.ports import is_port_free
from services.common.config.advice import recipe_warnings
from services.common.config.recipe import Recipe


def examine(recipe: Recipe) -> int:
    """Prints all needs, the remedy of each unmet one and the recipe's warnings; 0 when all needs are met, else 1."""
    facts = look_at_machine(Path(recipe.run.directory))
    checks = check_machine(facts, engines=recipe.rollout.replicas, trainer_ranks=recipe.trainer.ranks)
    checks.extend(port_checks(recipe))
    console = Console()
    table = Table()
    for heading in ("", "check", "seen", "wanted"):
        table.add_column(heading)
    for check in checks:
        mark = "[green]ok[/green]" if check.is_met else "[red]no[/red]"
        table.add_row(mark, check.name, check.seen, check.wanted)
    console.print(table)
    unmet = [check for check in checks if not check.is_met]
    for check in unmet:
        console.print(check.message, markup=False, highlight=False, soft_wrap=True)
    for warning in recipe_warnings(recipe):
        console.print(f"warning: {warning}", markup=False, highlight=False, soft_wrap=True)
    return 1 if unmet else 0


def port_checks(recipe: Recipe) -> list[Check]:
    """One check per configured port; ports left at 0 are chosen free when a run starts."""
    endpoints = {
        "reward": recipe.reward.endpoint,
        "weights": recipe.weights.endpoint,
        "trainer": recipe.trainer.endpoint,
        "rollout": recipe.rollout.endpoint,
    }
    checks = []
    for section, endpoint in endpoints.items():
        for key, port in (("port", endpoint.port), ("metrics_port", endpoint.metrics_port)):
            if port:
                is_free = is_port_free(endpoint.host, port)
                checks.append(
                    Check(
                        name=f"{section}.endpoint.{key} {port} on {endpoint.host}",
                        seen="free" if is_free else "taken",
                        wanted="free",
                        is_met=is_free,
                        remedy=f"end the process that holds it, or set {section}.endpoint.{key} to another port or 0",
                    )
                )
    return checks
