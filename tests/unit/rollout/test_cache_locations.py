"""The index kernels against loops over requests."""

import torch

from services.rollout.sglang_cpu.kernels import cache_locations
from services.rollout.sglang_cpu.plugin import compute_positions

ROWS = torch.tensor([3, 0, 2])
STARTS = torch.tensor([1, 0, 4], dtype=torch.int32)
ENDS = torch.tensor([4, 0, 6], dtype=torch.int32)


def test_slots_are_written_to_each_requests_positions() -> None:
    table = torch.full((4, 8), -1, dtype=torch.int32)
    cache_locations.assign_req_to_token_pool_cpu(ROWS, table, STARTS, ENDS, torch.arange(10, 15), 8)
    # Request in row 3 gets slots 10..12 at positions 1..3, row 0 none, row 2 slots 13, 14 at positions 4, 5.
    assert table[3].tolist() == [-1, 10, 11, 12, -1, -1, -1, -1]
    assert table[0].tolist() == [-1] * 8
    assert table[2].tolist() == [-1, -1, -1, -1, 13, 14, -1, -1]


def test_slots_are_read_from_each_requests_positions() -> None:
    table = torch.arange(32, dtype=torch.int32).view(4, 8)
    slots = torch.full((6,), -1)
    cache_locations.assign_extend_cache_locs_cpu(ROWS, table, STARTS, ENDS, slots, 8)
    # Row 3 starts at 24, row 2 at 16; the sixth place is not needed and stays.
    assert slots.tolist() == [25, 26, 27, 20, 21, -1]


def test_draft_slots_follow_the_sequence() -> None:
    table = torch.arange(32, dtype=torch.int32).view(4, 8)
    slots = torch.empty(12, dtype=torch.long)
    cache_locations.assign_draft_cache_locs_contiguous_cpu(ROWS, table, torch.tensor([1, 2, 4]), slots, 8, 2, 2)
    assert slots.tolist() == [25, 26, 27, 28, 2, 3, 4, 5, 20, 21, 22, 23]


def test_draft_branches_share_the_prefix_and_own_their_steps() -> None:
    table = torch.arange(20, dtype=torch.int32).view(2, 10)
    rows = cache_locations.build_draft_decode_metadata_cpu(
        table, torch.tensor([1]), torch.tensor([3]), topk=2, num_steps=2, pool_len=10
    )
    # Prefix slots 10, 11, 12; branch 0 owns 13, 14; branch 1 owns 15, 16, which move to positions 3, 4.
    assert rows[0, :5].tolist() == [10, 11, 12, 13, 14]
    assert rows[1, :5].tolist() == [10, 11, 12, 15, 16]


def test_bonus_token_is_the_last_accepted_one() -> None:
    bonus = torch.zeros(3, dtype=torch.int32)
    accepted = torch.tensor([5, 6, 7, 8, 9, 10])
    cache_locations.fill_bonus_tokens_cpu(accepted, torch.tensor([2, 1, 2]), bonus, 2)
    assert bonus.tolist() == [6, 7, 10]


def test_accepted_slots_are_packed() -> None:
    slots = torch.zeros(4, dtype=torch.long)
    index = torch.tensor([[0, 1], [2, -1], [-1, -1]])
    cache_locations.fill_accept_out_cache_loc_cpu(index, torch.tensor([40, 41, 42, 43]), slots)
    assert slots.tolist() == [40, 41, 42, 0]


def test_rotation_shifts_each_request_and_appends_its_next_token() -> None:
    ids = torch.tensor([1, 2, 3, 4, 5, 6])
    starts, lengths = torch.tensor([0, 3, 3, 5]), torch.tensor([3, 0, 2, 1])
    cache_locations.rotate_input_ids_cpu(ids, starts, lengths, torch.tensor([[70], [71], [72], [73]]))
    assert ids.tolist() == [2, 3, 70, 5, 72, 73]


def test_rotation_can_put_the_next_token_elsewhere() -> None:
    ids = torch.tensor([1, 2, 3, 4, 5])
    cache_locations.rotate_input_ids_cpu(
        ids, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([[70], [71]]), torch.tensor([1, 4])
    )
    assert ids.tolist() == [2, 70, 3, 5, 71]


def test_overlapping_cache_rows_are_copied_as_if_at_once() -> None:
    first, second = torch.arange(12.0).view(6, 2), torch.arange(6, dtype=torch.int16).view(6, 1)
    pointers = torch.tensor([first.data_ptr(), second.data_ptr()], dtype=torch.int64)
    cache_locations.copy_all_layer_kv_cache_cpu(
        pointers, torch.tensor([8, 2]), torch.tensor([1, 2]), torch.tensor([0, 1])
    )
    assert first[:4, 0].tolist() == [0.0, 0.0, 2.0, 6.0]
    assert second[:, 0].tolist() == [0, 0, 1, 3, 4, 5]


def test_copying_no_cache_rows_does_nothing() -> None:
    buffer = torch.arange(3)
    none = torch.empty(0, dtype=torch.long)
    cache_locations.copy_all_layer_kv_cache_cpu(torch.tensor([buffer.data_ptr()]), torch.tensor([8]), none, none)
    assert buffer.tolist() == [0, 1, 2]


def test_positions_continue_each_prefix() -> None:
    positions, starts = compute_positions(
        torch.tensor([5, 0, 7], dtype=torch.int32), torch.tensor([2, 3, 0], dtype=torch.int32)
    )
    assert positions.tolist() == [5, 6, 0, 1, 2]
    assert starts.tolist() == [0, 2, 5]
    assert (positions.dtype, starts.dtype) == (torch.int64, torch.int32)
