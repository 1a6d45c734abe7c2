"""The rollout service: generates, has scored and pushes groups; applies new weights."""
