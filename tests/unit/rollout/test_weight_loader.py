"""The weight loader on a model of three parameters, its segment real, its process this one."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from services.common.errors import InvalidInputError, TransferError
from services.rollout.sglang_weight_loader import execute_weight_command
from services.rollout.weight_commands import (
    InspectTask,
    Operation,
    PiecesTask,
    WeightAnswer,
    WeightCommand,
    decode_command,
    encode_command,
    read_answers,
)
from services.weights.segment import Segment, create_segment
from services.weights.tensor_memory import digest_tensor
from services.weights.transfer import (
    Box,
    EngineRankLayout,
    EngineSlice,
    EngineTensor,
    PieceDestination,
    StagedPiece,
    StagedRank,
)

HEAD = torch.arange(6.0).view(3, 2)
NORM = torch.tensor([1.5, -2.5], dtype=torch.bfloat16)


class Tiny(nn.Module):
    """A target with a vocabulary of 3, padded to 4 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.lm_head = nn.Linear(2, 4, bias=False)
        self.norm = nn.Parameter(torch.full((2,), 9.0, dtype=torch.bfloat16))


class TinyNextN(nn.Module):
    """A draft that has the target's head and a norm of its own."""

    def __init__(self, target: Tiny) -> None:
        super().__init__()
        self.lm_head = target.lm_head
        self.enorm = nn.Parameter(torch.full((1, 2), 9.0, dtype=torch.bfloat16))


def whole(*sizes: int) -> Box:
    return Box(starts=(0,) * len(sizes), sizes=sizes)


def entry(model: str, name: str, shape: tuple[int, ...], filled: Box, dtype: str) -> EngineTensor:
    part = EngineSlice(tensor=name, source=filled, destination=filled)
    return EngineTensor(model=model, name=name, shape=shape, dtype=dtype, slices=(part,))


LAYOUT = EngineRankLayout(
    rank=0,
    tensors=(
        entry("target", "lm_head.weight", (4, 2), whole(3, 2), "float32"),
        entry("target", "norm", (2,), whole(2), "bfloat16"),
        entry("draft", "enorm", (1, 2), whole(1, 2), "bfloat16"),
    ),
)


class Rank:
    """One engine rank with both models and a staging segment that holds a head and a norm."""

    def __init__(self, folder: Path, segment: Segment) -> None:
        torch.manual_seed(0)
        self.target = Tiny()
        self.draft = TinyNextN(self.target)
        self.segment = segment
        self.folder = folder
        self.num_commands = 0
        self.staged = StagedRank(rank=0, segment=segment.name, pieces=(self._head(), self._norm()))

    def _head(self) -> StagedPiece:
        self.stage(0, HEAD)
        destination = PieceDestination(model="target", name="lm_head.weight", box=whole(3, 2))
        return StagedPiece(
            offset_bytes=0, size_bytes=24, shape=(3, 2), dtype="float32", digest=digest_tensor(HEAD),
            destinations=(destination,),
        )  # fmt: skip

    def _norm(self) -> StagedPiece:
        self.stage(64, NORM)
        destinations = (
            PieceDestination(model="target", name="norm", box=whole(2)),
            PieceDestination(model="draft", name="enorm", box=whole(1, 2)),
        )
        return StagedPiece(
            offset_bytes=64, size_bytes=4, shape=(2,), dtype="bfloat16", digest=digest_tensor(NORM),
            destinations=destinations,
        )  # fmt: skip

    def stage(self, offset: int, tensor: Tensor) -> None:
        data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        self.segment.view[offset : offset + len(data)] = data

    def run(self, task: InspectTask | PiecesTask) -> list[WeightAnswer]:
        """The answers of target and draft, called in SGLang's order: the draft first."""
        self.num_commands += 1
        command = WeightCommand(ticket=f"c{self.num_commands}", folder=str(self.folder), rank=0, task=task)
        for model in (self.draft, self.target):
            execute_weight_command(model, [("command", encode_command(command))])
        return read_answers(self.folder, command.ticket, ranks=[0], models=("target", "draft"))

    def do(self, operation: Operation) -> list[WeightAnswer]:
        return self.run(PiecesTask(operation=operation, staged=self.staged))

    def values(self) -> list[list[float]]:
        parameters = (self.target.lm_head.weight, self.target.norm, self.draft.enorm)
        return [parameter.detach().float().flatten().tolist() for parameter in parameters]


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    segment = create_segment(run_id="loader-test", label="rank-0", size_bytes=128)
    yield Rank(tmp_path, segment)
    segment.close()


def problems(answers: list[WeightAnswer]) -> list[str]:
    return [answer.problem for answer in answers]


def test_inspection_accepts_the_layout_and_zeroes_what_will_not_be_filled(rank: Rank) -> None:
    assert problems(rank.run(InspectTask(layout=LAYOUT))) == ["", ""]
    assert rank.values() == [[0.0] * 8, [9.0, 9.0], [9.0, 9.0]]


@pytest.mark.parametrize(
    ("position", "changes", "message"),
    [
        (0, {"shape": (3, 2)}, r"has float32 \[4, 2\] as lm_head.weight, the layout wants float32 \[3, 2\]"),
        (1, {"dtype": "float32"}, r"has bfloat16 \[2\] as norm, the layout wants float32 \[2\]"),
        (1, {"name": "other"}, "target model has norm, which the layout lacks"),
    ],
)
def test_inspection_names_what_differs_and_zeroes_nothing(
    rank: Rank, position: int, changes: dict[str, object], message: str
) -> None:
    before = rank.values()
    tensors = list(LAYOUT.tensors)
    tensors[position] = replace(tensors[position], **changes)
    target, draft = rank.run(InspectTask(layout=replace(LAYOUT, tensors=tuple(tensors))))
    assert re.search(message, target.problem)
    assert draft.problem == ""
    assert rank.values() == before


def test_write_fills_target_and_draft_and_digests_agree(rank: Rank) -> None:
    rank.run(InspectTask(layout=LAYOUT))
    assert problems(rank.do(Operation.VERIFY)) == ["", ""]
    assert rank.values()[1] == [9.0, 9.0]
    assert problems(rank.do(Operation.WRITE)) == ["", ""]
    assert rank.values() == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0], [1.5, -2.5], [1.5, -2.5]]
    assert [answer.num_mismatches for answer in rank.do(Operation.DIGEST)] == [0, 0]


def test_digests_find_a_changed_parameter_in_its_model(rank: Rank) -> None:
    rank.do(Operation.WRITE)
    rank.draft.enorm.data[0, 1] = -2.51562
    assert [answer.num_mismatches for answer in rank.do(Operation.DIGEST)] == [0, 1]


def test_corrupted_byte_is_found_before_anything_is_written(rank: Rank) -> None:
    before = rank.values()
    rank.segment.view[65] ^= 1
    target, draft = rank.do(Operation.VERIFY)
    assert "staged piece for norm has digest" in target.problem
    assert "staged piece for enorm has digest" in draft.problem
    assert rank.values() == before


@pytest.mark.parametrize(
    ("model", "name", "box"),
    [
        ("target", "missing", whole(2)),
        ("target", "norm", Box(starts=(1,), sizes=(2,))),
        ("target", "norm", whole(1, 2)),
        ("target", "lm_head.weight", whole(1, 2)),
        ("draft", "enorm", whole(1, 1)),
    ],
)
def test_piece_that_does_not_fit_is_refused_by_its_model(rank: Rank, model: str, name: str, box: Box) -> None:
    head, norm = rank.staged.pieces
    wrong = replace(norm, destinations=(PieceDestination(model=model, name=name, box=box),))
    rank.staged = replace(rank.staged, pieces=(head, wrong))
    answers = {answer.model: answer.problem for answer in rank.do(Operation.VERIFY)}
    assert f"of {name}, but the {model} model has" in answers.pop(model)
    assert set(answers.values()) == {""}


def test_missing_segment_is_a_problem_not_an_exception(rank: Rank) -> None:
    rank.staged = replace(rank.staged, segment="furlong-loader-test-gone")
    assert all("its owner has ended" in problem for problem in problems(rank.do(Operation.VERIFY)))


def test_unforeseen_failure_is_a_problem_not_an_exception(rank: Rank) -> None:
    head, norm = rank.staged.pieces
    rank.staged = replace(rank.staged, pieces=(replace(head, shape=(4, 2)), norm))
    target, draft = rank.do(Operation.WRITE)
    assert target.problem.startswith("RuntimeError: ")
    assert draft.problem == ""


def test_unreadable_command_leaves_no_answer(rank: Rank) -> None:
    execute_weight_command(rank.target, [("command", torch.zeros(4, dtype=torch.uint8))])
    with pytest.raises(TransferError, match="target model of engine rank 0 left no answer to weight command c0"):
        read_answers(rank.folder, "c0", ranks=[0], models=("target",))
    with pytest.raises(InvalidInputError, match="weight command of 4 bytes is unreadable"):
        decode_command(torch.zeros(4, dtype=torch.uint8))


def test_command_survives_its_tensor(rank: Rank) -> None:
    for task in (InspectTask(layout=LAYOUT), PiecesTask(operation=Operation.WRITE, staged=rank.staged)):
        command = WeightCommand(ticket="t", folder="/tmp/x", rank=3, task=task)
        assert decode_command(encode_command(command)) == command
