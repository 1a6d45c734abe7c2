"""The smoke run from command to verdict, as a list of steps."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.cli.cluster_plan import plan_addresses
from services.cli.machine import MachineFacts
from services.cli.placement.placement import Placement
from services.cli.ports import PortChooser, is_port_free
from services.cli.run_folder import RunFolder
from services.cli.smoke.evidence import EvidenceValue
from services.cli.smoke.launch import Cluster, RunIdentity, RunPlan, new_identity, resumed_identity
from services.cli.smoke.options import SmokeOptions, new_recipe, resumed_recipe, run_name
from services.cli.smoke.preflight import (
    prepare_model,
    require_grader,
    require_machine,
    require_prompts,
    require_queue_server,
)
from services.cli.smoke.session import RunResult, Session
from services.cli.smoke.view import RunView
from services.common.config.advice import recipe_warnings
from services.common.config.recipe import Recipe
from services.common.errors import ConfigError
from services.common.security import Credentials, load_credentials


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run needs from outside; tests give their own."""

    make_placement: Callable[[str], Placement]
    """(prefix of shared-memory names) -> where processes run."""
    look_at_machine: Callable[[Path], MachineFacts]
    """(folder of the records) -> the machine."""
    view: RunView
    """Where the user looks."""
    environment: Mapping[str, str]
    """Base of the services' environment."""
    python: str
    """Interpreter of the services."""
    cache_directory: Path
    """What other runs may reuse."""
    install_seconds: float
    """Duration of the last installation; 0 when unknown."""
    started: float
    """time.monotonic() when the command began."""


@dataclass(frozen=True, kw_only=True)
class SmokeResult:
    """What is left to show after everything has stopped."""

    run: RunResult
    """The figures and the verdict."""
    evidence: dict[str, EvidenceValue]
    """As written to evidence.json."""
    folder: RunFolder
    """The records."""


def run_smoke(options: SmokeOptions, world: World) -> SmokeResult:
    """Runs or resumes a smoke run; every process it started has ended when it returns or raises.

    Raises:
        ConfigError: recipe, machine or options cannot work; nothing was started.
        InvalidInputError: a prompt is bad; nothing was started.
        FurlongError: the run failed.
    """
    _require_writable(options.evidence_path)
    recipe, folder = _recipe_and_folder(options)
    credentials = load_credentials(recipe.security)
    folder.lock()
    try:
        plan = _prepare(recipe, folder, options, world)
        session, result = _run(plan, credentials, world)
        evidence = session.evidence(time.monotonic() - world.started)
        _write_json(folder.evidence_path, evidence)
        if options.evidence_path:
            _write_json(options.evidence_path, evidence)
        return SmokeResult(run=result, evidence=evidence, folder=folder)
    finally:
        world.view.close()
        folder.unlock()


def _recipe_and_folder(options: SmokeOptions) -> tuple[Recipe, RunFolder]:
    if options.is_resume:
        folder = RunFolder(Path(Recipe().run.directory), run_name(options))
        return resumed_recipe(options, folder), folder
    recipe = new_recipe(options)
    return recipe, RunFolder(Path(recipe.run.directory), recipe.run.name)


def _prepare(recipe: Recipe, folder: RunFolder, options: SmokeOptions, world: World) -> RunPlan:
    """Preflight, then the folder: no record changes before all of the preflight has passed."""
    for warning in recipe_warnings(recipe):
        world.view.say(f"warning: {warning}")
    world.view.progress("checking prompts, ports and machine")
    require_grader(recipe)
    model_directory = prepare_model(recipe, world.cache_directory)
    prompts = require_prompts(recipe, model_directory)
    chooser = PortChooser(start=os.getpid() * 37, is_free=is_port_free)
    addresses = plan_addresses(
        recipe, lambda host, configured, key: chooser.choose(host, configured=configured, key=key)
    )
    require_queue_server(recipe.redis.url)
    require_machine(world.look_at_machine(folder.path.parent), recipe)
    world.view.say(
        f"{prompts.num_train_prompts} prompts to train on, {len(prompts.held_out)} held out; "
        f"model {recipe.model.preset or recipe.model.path}; seed {recipe.run.seed}"
    )
    return RunPlan(
        recipe=recipe,
        folder=folder,
        identity=_open_folder(recipe, folder, options, world.view),
        addresses=addresses,
        model_directory=model_directory,
        cache_directory=world.cache_directory,
        python=world.python,
        environment=world.environment,
    )


def _open_folder(recipe: Recipe, folder: RunFolder, options: SmokeOptions, view: RunView) -> RunIdentity:
    if options.is_resume:
        identity = resumed_identity(folder)
    else:
        identity = new_identity(recipe.run.name)
        moved = folder.open_new()
        if moved:
            view.say(f"the records of the earlier run are now in {moved}")
    folder.evidence_path.unlink(missing_ok=True)
    _write_json(folder.recipe_path, recipe.model_dump(mode="json"))
    view.say(f"run {identity.run_id}: records in {folder.path}")
    return identity


def _run(plan: RunPlan, credentials: Credentials, world: World) -> tuple[Session, RunResult]:
    """Everything between the first and the last process."""
    placement = world.make_placement(f"furlong-{plan.identity.run_id}")
    cluster = Cluster(placement, world.view, plan, credentials)
    try:
        session = Session(plan, cluster, world.view, install_seconds=world.install_seconds)
        return session, session.run()
    finally:
        world.view.progress("stopping")
        with _deaf_to_signals():
            cluster.stop()


@contextmanager
def _deaf_to_signals() -> Iterator[None]:
    """Stopping takes less than ten seconds; a second Ctrl-C must not cut it short and leave processes behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _require_writable(path: Path | None) -> None:
    """Finds out before the run, not after it."""
    if path and (path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK)):
        raise ConfigError(f"--json {path} cannot be written; give a file in an existing folder")


def _write_json(path: Path, table: object) -> None:
    path.write_text(json.dumps(table, indent=2) + "\n")
