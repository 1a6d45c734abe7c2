from services.common.prompts.addition import is_held_out, parse_question, split_key
from services.common.prompts.demonstrations import AdditionDemonstrations
from services.common.prompts.tokenizer import Tokenizer
from services.common.tiny_model.vocabulary import task_tokenizer

_TOKENIZER = Tokenizer(task_tokenizer())


def _texts(step, *, bad_share, size=64, seed=0):
    batch = AdditionDemonstrations(_TOKENIZER, seed=seed).batch(step, size=size, bad_share=bad_share)
    return [(_TOKENIZER.decode(d.prompt_token_ids), _TOKENIZER.decode(d.response_token_ids)) for d in batch]


def test_batch_depends_on_seed_and_step_only():
    source = AdditionDemonstrations(_TOKENIZER, seed=0)
    source.batch(5, size=64, bad_share=0.0)
    assert source.batch(7, size=64, bad_share=0.65) == AdditionDemonstrations(_TOKENIZER, seed=0).batch(
        7, size=64, bad_share=0.65
    )
    assert _texts(7, bad_share=0.65) != _texts(8, bad_share=0.65)
    assert _texts(7, bad_share=0.65) != _texts(7, bad_share=0.65, seed=1)


def test_good_batch_holds_right_answers_to_training_tasks():
    for prompt, reply in _texts(0, bad_share=0.0):
        question = prompt.removeprefix("[gMASK]<sop><|user|>").removesuffix("<|assistant|>")
        addition = parse_question(question)
        assert not is_held_out(split_key(addition))
        assert reply == f"<think>{f'{addition.total:02d}'[::-1]}</think>\\boxed{{{addition.total}}}<|endoftext|>"


def test_bad_share_is_the_share_of_replies_without_a_thought():
    replies = [reply for step in range(50) for _, reply in _texts(step, bad_share=0.65)]
    share = sum("<think></think>" in reply for reply in replies) / len(replies)
    # 3,200 draws: standard error 0.0084
    assert abs(share - 0.65) < 0.03
