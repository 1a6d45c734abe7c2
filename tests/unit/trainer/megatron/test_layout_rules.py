import dataclasses

import pytest

from services.common.config.trainer import ParallelConfig
from services.common.errors import ConfigError
from services.trainer.megatron.layout_rules import check_layout, padded_vocab_size
from tests.unit.trainer.megatron.model_shapes import SMALL


@pytest.mark.parametrize(
    ("parallel", "num_ranks"),
    [
        (ParallelConfig(), 1),
        (ParallelConfig(), 3),
        (ParallelConfig(tp=2), 2),
        (ParallelConfig(tp=2), 4),
        (ParallelConfig(ep=2), 2),
        (ParallelConfig(tp=2, ep=2), 2),
        (ParallelConfig(tp=2, ep=2, etp=2), 4),
    ],
)
def test_a_layout_that_divides_the_model_is_taken(parallel: ParallelConfig, num_ranks: int) -> None:
    check_layout(SMALL, parallel, num_ranks=num_ranks)


@pytest.mark.parametrize(
    ("parallel", "num_ranks", "message"),
    [
        (ParallelConfig(pp=2), 2, "trainer.parallel.pp is 2, but only 1 is supported; set trainer.parallel.pp=1"),
        (ParallelConfig(cp=2), 2, "trainer.parallel.cp is 2, but only 1 is supported; set trainer.parallel.cp=1"),
        # Megatron trains this layout with wrong expert gradients, in silence.
        (ParallelConfig(tp=2, etp=1), 2, "wrong gradients; set trainer.parallel.etp=2"),
        (ParallelConfig(tp=2), 3, "trainer.ranks is 3"),
        (ParallelConfig(ep=4), 2, "trainer.ranks is 2"),
        (ParallelConfig(tp=4), 4, "num_key_value_heads 2 is no multiple of it"),
        (ParallelConfig(ep=3), 3, "n_routed_experts 4 is no multiple of it"),
    ],
)
def test_an_impossible_layout_is_refused_with_the_remedy(
    parallel: ParallelConfig, num_ranks: int, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_layout(SMALL, parallel, num_ranks=num_ranks)
    assert message in str(caught.value)


@pytest.mark.parametrize(("tp", "rows"), [(1, 7), (2, 8), (4, 8), (8, 8), (3, 9)])
def test_the_vocabulary_is_padded_to_a_multiple_of_tp(tp: int, rows: int) -> None:
    assert padded_vocab_size(dataclasses.replace(SMALL, vocab_size=7), ParallelConfig(tp=tp)) == rows
