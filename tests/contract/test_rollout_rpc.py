"""Every call of RolloutService over a real server, with a fake engine on its own event loop."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from furlong.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from prometheus_client import CollectorRegistry

from services.common.channels import call, open_channel
from services.common.errors import DeadlineError, InvalidInputError, StateConflictError
from services.common.memory_prompt_ledger import MemoryPromptLedger
from services.common.memory_sample_queue import MemorySampleQueue
from services.common.prompts.prompt_source import addition_prompts
from services.common.prompts.tokenizer import Tokenizer
from services.common.records import PolicyVersion, Score
from services.common.security import NO_CREDENTIALS
from services.common.server import ServedService, Server
from services.common.telemetry import CallMetrics
from services.common.tiny_model.making import make_tiny_model
from services.rollout.engine import SamplingParameters
from services.rollout.evaluation import EvaluationPlan, Evaluator
from services.rollout.fake_engine import FakeEngine
from services.rollout.generation import GenerationLoop
from services.rollout.generation_control import GenerationControl
from services.rollout.group_making import GroupMaker
from services.rollout.group_rules import GroupRules
from services.rollout.metrics import RolloutMetrics
from services.rollout.overlong import OverlongPenalty
from services.rollout.scoring import ResponseToScore
from services.rollout.servicer import RolloutServicer
from services.rollout.tally import Tally

SAMPLING = SamplingParameters(temperature=1.0, top_p=1.0, max_new_tokens=8)


class FirstDigitScorer:
    """1 when the response begins with the first digit of the label."""

    def score_batch(self, items: Sequence[ResponseToScore]) -> list[Score]:
        return [
            Score(value=float(i.response[0] == i.label[0]), extracted="", rule="string", seconds=0.0, error="")
            for i in items
        ]


class Service:
    """A rollout service over a fake engine, without the weights part."""

    def __init__(self, folder: Path) -> None:
        make_tiny_model("tiny-task", seed=0, folder=folder)
        self.tokenizer = Tokenizer.from_folder(folder)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        end = self.tokenizer.encode("<|endoftext|>")[0]
        digits = [self.tokenizer.encode(digit)[0] for digit in "12"]
        self.engine = FakeEngine(respond=lambda prompt, step, sample: (digits[sample % 2], end), end_token_id=end)
        prompts = addition_prompts(self.tokenizer, seed=0)
        self.ledger = MemoryPromptLedger(
            run_id="run", groups_per_round=2, max_prompts_per_round=4, lease_seconds=1e6, clock=lambda: 0.0
        )
        self.queue = MemorySampleQueue(run_id="run", max_groups=100)
        tally = Tally(RolloutMetrics(CollectorRegistry()))
        maker = GroupMaker(
            run_id="run",
            engine=self.engine,
            prompts=prompts,
            decoder=self.tokenizer,
            scorer=FirstDigitScorer(),
            ledger=self.ledger,
            queue=self.queue,
            sampling=SAMPLING,
            samples_per_prompt=2,
            penalty=OverlongPenalty(max_new_tokens=8, buffer_tokens=0, factor=0.0),
            rules=GroupRules(drop_equal_rewards=False, filter_truncated=False),
            require_end_token=True,
            tally=tally,
        )
        generation = GenerationLoop(
            worker="rollout-0",
            engine=self.engine,
            ledger=self.ledger,
            maker=maker,
            max_lag_versions=0,
            num_rounds=10,
            has_surplus=False,
            max_groups_in_flight=4,
            tally=tally,
        )
        self.control = GenerationControl(generation, self.loop, on_failure=lambda: None)
        servicer = RolloutServicer(
            engine=self.engine,
            loop=self.loop,
            tokenizer=self.tokenizer,
            evaluator=Evaluator(
                engine=self.engine,
                prompts=prompts.held_out,
                decoder=self.tokenizer,
                scorer=FirstDigitScorer(),
                require_end_token=True,
                batch_responses=64,
            ),
            control=self.control,
            tally=tally,
            evaluation_plan=EvaluationPlan(
                num_prompts=0, samples_per_prompt=1, pass_threshold=1.0, sampling=SAMPLING, num_examples=0
            ),
            context_length=32,
        )
        self.server = Server(
            [
                ServedService(
                    full_name="furlong.rollout.v1.RolloutService",
                    add_to=lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server),
                )
            ],
            address="127.0.0.1:0",
            credentials=NO_CREDENTIALS,
            metrics=CallMetrics("rollout", CollectorRegistry()),
        )

    def commit(self, step: int) -> None:
        version = PolicyVersion(run_id="run.0", step=step)
        asyncio.run_coroutine_threadsafe(self.engine.commit(version, ()), self.loop).result(5)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.control.stop(), self.loop).result(5)
        self.server.stop(grace_seconds=0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.close()


@pytest.fixture
def stub(service: Service) -> Iterator[rollout_pb2_grpc.RolloutServiceStub]:
    with open_channel(f"127.0.0.1:{service.server.port}", NO_CREDENTIALS) as channel:
        yield rollout_pb2_grpc.RolloutServiceStub(channel)


def generate(stub: rollout_pb2_grpc.RolloutServiceStub, **fields: object) -> rollout_pb2.GenerateResponse:
    sampling = rollout_pb2.SamplingParameters(temperature=1.0, max_new_tokens=8)
    request = rollout_pb2.GenerateRequest(**{"request_id": "g", "sampling": sampling, **fields})
    return call(lambda: stub.Generate(request, timeout=10), peer="rollout")


def test_generate_before_the_first_version_is_refused(stub: rollout_pb2_grpc.RolloutServiceStub) -> None:
    with pytest.raises(StateConflictError):
        generate(stub, prompt_text="1+1")


def test_generate_answers_text_and_ids_alike(service: Service, stub: rollout_pb2_grpc.RolloutServiceStub) -> None:
    service.commit(3)
    by_text = generate(stub, prompt_text="[gMASK]<sop><|user|>1+1<|assistant|>", num_samples=2)
    by_ids = generate(
        stub, prompt_token_ids=service.tokenizer.encode("[gMASK]<sop><|user|>1+1<|assistant|>"), num_samples=2
    )
    assert [response.text for response in by_text.responses] == ["1<|endoftext|>", "2<|endoftext|>"]
    assert by_ids == by_text
    assert [span.step for span in by_text.responses[0].sample.version_spans] == [3]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "the prompt is empty"),
        ({"prompt_token_ids": [64]}, "token id 64 is outside 0 to 63"),
        ({"prompt_text": "what?"}, "the tokenizer has no token for 'w'"),
        ({"prompt_text": "1" * 30}, "prompt and new tokens need 38 tokens, the engine has 32"),
        ({"prompt_text": "1", "num_samples": 5000}, "num_samples is 5000, wanted 1 to 1024"),
        ({"prompt_text": "1", "sampling": rollout_pb2.SamplingParameters(max_new_tokens=0)}, "max_new_tokens 0"),
        (
            {"prompt_text": "1", "sampling": rollout_pb2.SamplingParameters(temperature=-1, max_new_tokens=1)},
            "temperature -1.0",
        ),
    ],
)
def test_a_wrong_request_is_refused_with_the_value_seen(
    service: Service, stub: rollout_pb2_grpc.RolloutServiceStub, fields: dict[str, object], message: str
) -> None:
    service.commit(0)
    with pytest.raises(InvalidInputError, match=message):
        generate(stub, **fields)


def test_evaluate_gives_figures_of_one_version(service: Service, stub: rollout_pb2_grpc.RolloutServiceStub) -> None:
    service.commit(2)
    reply = stub.Evaluate(rollout_pb2.EvaluateRequest(num_prompts=40, num_examples=3), timeout=30)
    right = sum(example.reward for example in reply.examples)
    assert (reply.version.step, reply.num_prompts, len(reply.examples)) == (2, 40, 3)
    assert all(example.reward == float(example.label[0] == "1") for example in reply.examples)
    assert 0 <= right <= 3
    assert (reply.thinking_rate, reply.truncation_rate, reply.mean_response_tokens) == (0.0, 0.0, 2.0)


def test_evaluate_with_several_samples_gives_pass_rates(
    service: Service, stub: rollout_pb2_grpc.RolloutServiceStub
) -> None:
    service.commit(2)
    request = rollout_pb2.EvaluateRequest(num_prompts=40, samples_per_prompt=3, pass_threshold=0.5, num_examples=40)
    reply = stub.Evaluate(request, timeout=30)
    assert (reply.num_prompts, reply.samples_per_prompt, reply.pass_threshold) == (40, 3, 0.5)
    # Samples 0 and 2 answer 1, sample 1 answers 2. Of a prompt whose answer begins with 1 two of three pass, and so
    # does every pair; of one that begins with 2 one passes, and two of the three pairs hold it.
    ones = sum(example.label[0] == "1" for example in reply.examples) / 40
    twos = sum(example.label[0] == "2" for example in reply.examples) / 40
    assert [item.k for item in reply.pass_rates] == [1, 2, 3]
    wanted = [ones * 2 / 3 + twos / 3, ones + twos * 2 / 3, ones + twos]
    assert [item.rate for item in reply.pass_rates] == pytest.approx(wanted)
    assert reply.mean_reward == pytest.approx(wanted[0])
    assert (reply.median_response_tokens, reply.p90_response_tokens, reply.max_response_tokens) == (2.0, 2, 2)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (rollout_pb2.EvaluateRequest(num_prompts=-1), "num_prompts is -1"),
        (rollout_pb2.EvaluateRequest(samples_per_prompt=1025), "samples_per_prompt is 1025, wanted 1 to 1024"),
        (rollout_pb2.EvaluateRequest(pass_threshold=float("nan")), "pass_threshold is nan"),
        (
            rollout_pb2.EvaluateRequest(
                samples_per_prompt=2, sampling=rollout_pb2.SamplingParameters(max_new_tokens=4)
            ),
            "samples_per_prompt is 2 at temperature 0",
        ),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused(
    stub: rollout_pb2_grpc.RolloutServiceStub, request_: rollout_pb2.EvaluateRequest, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call(lambda: stub.Evaluate(request_, timeout=5), peer="rollout")


def test_start_generation_is_idempotent_and_status_counts(
    service: Service, stub: rollout_pb2_grpc.RolloutServiceStub
) -> None:
    assert not stub.GetStatus(rollout_pb2.GetStatusRequest(), timeout=5).is_generating
    assert not stub.StartGeneration(rollout_pb2.StartGenerationRequest(), timeout=5).was_running
    assert stub.StartGeneration(rollout_pb2.StartGenerationRequest(), timeout=5).was_running
    service.commit(0)
    deadline = threading.Event()
    for _ in range(100):
        if service.ledger.round_state(0).is_complete:
            break
        deadline.wait(0.05)
    status = stub.GetStatus(rollout_pb2.GetStatusRequest(), timeout=5)
    assert (status.version.step, status.is_generating, status.num_groups_pushed) == (0, True, 2)
    assert (status.num_samples_generated, status.num_tokens_generated, status.last_error) == (4, 8, "")
    assert service.queue.depth() == 2


def test_a_call_ends_at_its_deadline(service: Service, stub: rollout_pb2_grpc.RolloutServiceStub) -> None:
    service.commit(0)
    service.engine.seconds_per_token = 5.0
    request = rollout_pb2.GenerateRequest(
        prompt_text="1", sampling=rollout_pb2.SamplingParameters(temperature=1.0, max_new_tokens=4)
    )
    with pytest.raises(DeadlineError):
        call(lambda: stub.Generate(request, timeout=0.3), peer="rollout")
