"""From a recipe to processes, addresses and start order."""

from itertools import count
from pathlib import Path

from services.cli.cluster_plan import (
    ChoosePort,
    ProcessSettings,
    plan_addresses,
    plan_queue_server,
    plan_services,
)
from services.common.config.loading import recipe_from_table
from services.common.config.recipe import Recipe
from services.common.deployment import Deployment

SETTINGS = ProcessSettings(python="/venv/python", environment={"PATH": "/bin", "OMP_NUM_THREADS": "8"})


def ports_from(first: int) -> ChoosePort:
    numbers = count(first)
    return lambda host, configured, key: configured or next(numbers)


def deployment_of(recipe: Recipe) -> Deployment:
    addresses = plan_addresses(recipe, ports_from(100))
    return Deployment(
        run_id="smoke-1",
        incarnation=0,
        recipe=recipe,
        addresses=addresses.services,
        metrics_ports=addresses.metrics_ports,
        redis_url="redis://x",
        run_directory=Path("/runs/smoke"),
        model_directory=Path("/model"),
        cache_directory=Path("/cache"),
        trainer_rendezvous=addresses.trainer_rendezvous,
    )


def test_every_server_gets_a_port_and_a_metrics_port() -> None:
    addresses = plan_addresses(recipe_from_table({"rollout": {"replicas": 2}}), ports_from(100))
    assert addresses.services.reward == ("127.0.0.1:100",)
    assert addresses.services.weights == "127.0.0.1:102"
    assert addresses.services.trainer == "127.0.0.1:104"
    assert addresses.services.rollout == ("127.0.0.1:106", "127.0.0.1:108")
    assert addresses.metrics_ports.reward == (101,)
    assert addresses.metrics_ports.rollout == (107, 109)
    assert addresses.trainer_rendezvous == "127.0.0.1:110"


def test_configured_ports_are_kept_and_replicas_count_up() -> None:
    endpoint = {"host": "127.0.0.2", "port": 7000, "metrics_port": 7001}
    recipe = recipe_from_table(
        {
            "rollout": {"replicas": 2, "endpoint": endpoint},
            "reward": {"replicas": 2, "endpoint": {**endpoint, "port": 8000, "metrics_port": 8001}},
        }
    )
    addresses = plan_addresses(recipe, ports_from(100))
    assert addresses.services.reward == ("127.0.0.2:8000", "127.0.0.2:8002")
    assert addresses.metrics_ports.reward == (8001, 8003)
    assert addresses.services.rollout == ("127.0.0.2:7000", "127.0.0.2:7002")
    assert addresses.metrics_ports.rollout == (7001, 7003)


def test_services_start_in_order_with_their_command_lines() -> None:
    recipe = recipe_from_table({"reward": {"replicas": 2}, "rollout": {"replicas": 2}, "trainer": {"ranks": 2}})
    path = Path("/runs/smoke/deployment.json")
    specs = plan_services(deployment_of(recipe), deployment_path=path, settings=SETTINGS)
    start = ("/venv/python", "-m")
    given = ("--deployment", "/runs/smoke/deployment.json")
    assert [(spec.name, spec.command) for spec in specs] == [
        ("reward-0", (*start, "services.reward.main", *given, "--index", "0")),
        ("reward-1", (*start, "services.reward.main", *given, "--index", "1")),
        ("weights", (*start, "services.weights.main", *given)),
        ("rollout-0", (*start, "services.rollout.main", *given, "--index", "0")),
        ("rollout-1", (*start, "services.rollout.main", *given, "--index", "1")),
        ("trainer-0", (*start, "services.trainer.main", *given, "--index", "0")),
        ("trainer-1", (*start, "services.trainer.main", *given, "--index", "1")),
    ]
    assert specs[0].log_path == Path("/runs/smoke/logs/reward-0.log")
    assert specs[0].working_directory == Path("/runs/smoke")


def test_a_cpu_run_uses_one_thread_per_process_and_no_network_look_ups() -> None:
    spec = plan_services(deployment_of(Recipe()), deployment_path=Path("/d"), settings=SETTINGS)[0]
    assert spec.environment["OMP_NUM_THREADS"] == "1"
    assert spec.environment["HF_HUB_OFFLINE"] == "1"
    assert spec.environment["PATH"] == "/bin"


def test_the_queue_server_gets_its_folder_and_the_file_for_its_url() -> None:
    spec = plan_queue_server(
        run_directory=Path("/runs/smoke"), url_path=Path("/runs/smoke/u"), recipe=Recipe(), settings=SETTINGS
    )
    assert spec.name == "valkey"
    assert spec.command == (
        "/venv/python",
        "-m",
        "services.cli.queue_server",
        "/runs/smoke/valkey",
        "/runs/smoke/u",
    )
