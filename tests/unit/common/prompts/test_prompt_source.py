import json

import pytest

from services.common.config.run import DataConfig
from services.common.errors import InvalidInputError
from services.common.prompts.addition import held_out_additions, train_additions
from services.common.prompts.prompt_source import SplitPrompts, open_demonstrations, open_prompt_source
from services.common.prompts.tokenizer import Tokenizer
from services.common.records import Prompt
from services.common.tiny_model.vocabulary import byte_tokenizer, task_tokenizer

_TASK = Tokenizer(task_tokenizer())
_BYTES = Tokenizer(byte_tokenizer())


def _prompt(name):
    return Prompt(text=name, token_ids=(1,), label="0", source=name)


def _file(tmp_path, prompts, name="data.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps({"prompt": prompt, "label": "1"}) + "\n" for prompt in prompts))
    return str(path)


def test_each_epoch_is_a_permutation_of_its_own():
    source = SplitPrompts(train=[_prompt(str(i)) for i in range(50)], held_out=[_prompt("h")], seed=0)
    epochs = [[source.prompt_at(epoch * 50 + i).text for i in range(50)] for epoch in range(3)]
    assert all(sorted(epoch, key=int) == [str(i) for i in range(50)] for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_order_is_a_function_of_the_seed_and_the_position():
    train = [_prompt(str(i)) for i in range(50)]
    first = SplitPrompts(train=train, held_out=[_prompt("h")], seed=4)
    again = SplitPrompts(train=train, held_out=[_prompt("h")], seed=4)
    other = SplitPrompts(train=train, held_out=[_prompt("h")], seed=5)
    positions = [170, 3, 99, 1000, 3]
    assert [first.prompt_at(p) for p in positions] == [again.prompt_at(p) for p in positions]
    assert [first.prompt_at(p) for p in range(50)] != [other.prompt_at(p) for p in range(50)]


def test_built_in_prompts_never_show_a_held_out_pair():
    source = open_prompt_source(DataConfig(), _TASK, seed=0)
    assert (source.num_train_prompts, len(source.held_out)) == (7991, 2009)
    seen = {source.prompt_at(position).source for position in range(2 * 7991)}
    assert seen == {f"addition:{addition.question}" for addition in train_additions()}
    assert seen.isdisjoint(prompt.source for prompt in source.held_out)


def test_built_in_prompt_carries_text_ids_and_label():
    prompt = open_prompt_source(DataConfig(), _TASK, seed=0).held_out[0]
    addition = held_out_additions()[0]
    assert prompt.text == f"[gMASK]<sop><|user|>{addition.question}<|assistant|>"
    assert _TASK.decode(prompt.token_ids) == prompt.text
    assert prompt.label == str(addition.total)


def test_file_is_split_by_the_prompt_so_that_repeats_stay_on_one_side(tmp_path):
    prompts = [f"question {i % 100}" for i in range(300)]
    source = open_prompt_source(DataConfig(prompt_data=_file(tmp_path, prompts)), _BYTES, seed=0)
    held_out = {prompt.text for prompt in source.held_out}
    train = {source.prompt_at(position).text for position in range(source.num_train_prompts)}
    assert held_out.isdisjoint(train)
    assert len(held_out | train) == 100
    assert len(source.held_out) + source.num_train_prompts == 300
    assert 5 <= len(held_out) <= 40


def test_additions_of_a_file_split_as_the_built_in_ones(tmp_path):
    prompts = [addition.question for addition in train_additions()[:200] + held_out_additions()[:50]]
    source = open_prompt_source(DataConfig(prompt_data=_file(tmp_path, prompts)), _TASK, seed=0)
    built_in = open_prompt_source(DataConfig(), _TASK, seed=0)
    assert {p.text for p in source.held_out} == {p.text for p in built_in.held_out[:50]}


@pytest.mark.parametrize("num_prompts", [2, 3, 5])
def test_small_file_has_both_sides(tmp_path, num_prompts):
    for base in range(20):
        prompts = [f"{base} {i}" for i in range(num_prompts)]
        source = open_prompt_source(DataConfig(prompt_data=_file(tmp_path, prompts)), _BYTES, seed=0)
        assert len(source.held_out) >= 1
        assert source.num_train_prompts >= 1
        assert len(source.held_out) + source.num_train_prompts == num_prompts


def test_one_distinct_prompt_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="has 1 distinct prompt"):
        open_prompt_source(DataConfig(prompt_data=_file(tmp_path, ["a", "a"])), _BYTES, seed=0)


def test_second_file_is_the_held_out_side(tmp_path):
    data = DataConfig(prompt_data=_file(tmp_path, ["a", "b"]), held_out_data=_file(tmp_path, ["c"], "held_out.jsonl"))
    source = open_prompt_source(data, _BYTES, seed=0)
    assert [prompt.source for prompt in source.held_out] == ["held_out.jsonl:1"]
    assert source.num_train_prompts == 2


def test_held_out_prompt_that_is_trained_on_is_refused(tmp_path):
    data = DataConfig(
        prompt_data=_file(tmp_path, ["a", "b"]), held_out_data=_file(tmp_path, ["c", "b"], "held_out.jsonl")
    )
    with pytest.raises(InvalidInputError, match=r"held_out.jsonl:2: this held-out prompt is also data.jsonl:2"):
        open_prompt_source(data, _BYTES, seed=0)


def test_only_the_arithmetic_model_has_demonstrations():
    assert open_demonstrations("tiny-byte", _BYTES, seed=0) is None
    assert open_demonstrations("", _BYTES, seed=0) is None
    demonstrations = open_demonstrations("tiny-task", _TASK, seed=0)
    assert len(demonstrations.batch(0, size=4, bad_share=0.0)) == 4
