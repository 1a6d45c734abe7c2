import random

from services.common.prompts.addition import (
    Addition,
    all_additions,
    bad_reply,
    good_reply,
    held_out_additions,
    is_held_out,
    parse_question,
    split_key,
    train_additions,
)


def test_split_has_the_documented_sizes_and_no_pair_on_both_sides():
    train, held_out = train_additions(), held_out_additions()
    assert (len(train), len(held_out)) == (7991, 2009)
    assert {split_key(addition) for addition in train}.isdisjoint(split_key(addition) for addition in held_out)
    assert len({(a.left, a.right) for a in train + held_out}) == len(all_additions()) == 10000


def test_swapped_operands_fall_on_the_same_side():
    for addition in all_additions():
        swapped = Addition(left=addition.right, right=addition.left)
        assert is_held_out(split_key(addition)) == is_held_out(split_key(swapped))


def test_held_out_order_does_not_follow_the_operands():
    lefts = [addition.left for addition in held_out_additions()[:256]]
    assert 35 < sum(lefts) / 256 < 65


def test_question_is_zero_padded():
    assert Addition(left=7, right=85).question == "07+85"


def test_good_reply_thinks_backwards_and_answers():
    assert good_reply(Addition(left=47, right=85)) == "<think>231</think>\\boxed{132}<|endoftext|>"
    assert good_reply(Addition(left=2, right=3)) == "<think>50</think>\\boxed{5}<|endoftext|>"


def test_bad_replies_guess_near_the_sum_without_a_thought():
    random_source = random.Random(0)
    replies = {bad_reply(Addition(left=47, right=85), random_source=random_source) for _ in range(500)}
    offsets = {-30, -20, -11, -10, -9, -2, -1, 1, 2, 9, 10, 11, 20, 30}
    assert replies == {f"<think></think>\\boxed{{{132 + offset}}}<|endoftext|>" for offset in offsets}


def test_bad_replies_never_go_below_zero():
    random_source = random.Random(0)
    for _ in range(200):
        assert "-" not in bad_reply(Addition(left=0, right=1), random_source=random_source)


def test_questions_are_recognised():
    assert parse_question("12+34") == Addition(left=12, right=34)
    assert parse_question(" 7 + 08 ") == Addition(left=7, right=8)
    assert parse_question("123+4") is None
    assert parse_question("12-34") is None
    assert parse_question("１+２") is None
