"""Pure maps between the shared records and their protobuf messages."""

from furlong.common.v1 import sample_pb2

from services.common.errors import InvalidInputError
from services.common.records import FinishReason, Group, PolicyVersion, Sample, VersionSpan

_FINISH_TO_PROTO = {
    FinishReason.STOP: sample_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sample_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORTED: sample_pb2.FINISH_REASON_ABORTED,
}
_FINISH_FROM_PROTO = {proto: reason for reason, proto in _FINISH_TO_PROTO.items()}


def version_to_proto(version: PolicyVersion) -> sample_pb2.PolicyVersion:
    """The message of a version."""
    return sample_pb2.PolicyVersion(run_id=version.run_id, step=version.step)


def version_from_proto(message: sample_pb2.PolicyVersion) -> PolicyVersion | None:
    """The version of a message; None when its run id is empty."""
    if not message.run_id:
        return None
    return PolicyVersion(run_id=message.run_id, step=message.step)


def sample_to_proto(sample: Sample) -> sample_pb2.Sample:
    """The message of a sample."""
    return sample_pb2.Sample(
        sample_id=sample.sample_id,
        response_token_ids=sample.response_token_ids,
        logprobs=sample.logprobs,
        version_spans=[
            sample_pb2.VersionSpan(step=span.step, num_tokens=span.num_tokens) for span in sample.version_spans
        ],
        reward=sample.reward,
        finish_reason=_FINISH_TO_PROTO[sample.finish_reason],
        num_verify_steps=sample.num_verify_steps,
    )


def sample_from_proto(message: sample_pb2.Sample) -> Sample:
    """The sample of a message.

    Raises:
        InvalidInputError: token ids, log-probabilities and version spans disagree in length.
    """
    num_tokens = len(message.response_token_ids)
    span_tokens = sum(span.num_tokens for span in message.version_spans)
    if len(message.logprobs) != num_tokens or span_tokens != num_tokens:
        raise InvalidInputError(
            f"sample {message.sample_id!r} has {num_tokens} response tokens, {len(message.logprobs)} "
            f"log-probabilities and version spans over {span_tokens} tokens; all three must be equal"
        )
    if message.finish_reason not in _FINISH_FROM_PROTO:
        raise InvalidInputError(f"sample {message.sample_id!r} has no finish reason; set one")
    return Sample(
        sample_id=message.sample_id,
        response_token_ids=tuple(message.response_token_ids),
        logprobs=tuple(message.logprobs),
        version_spans=tuple(VersionSpan(step=s.step, num_tokens=s.num_tokens) for s in message.version_spans),
        reward=message.reward,
        finish_reason=_FINISH_FROM_PROTO[message.finish_reason],
        num_verify_steps=message.num_verify_steps,
    )


def group_to_proto(group: Group) -> sample_pb2.Group:
    """The message of a group."""
    return sample_pb2.Group(
        group_id=group.group_id,
        round=group.round,
        position=group.position,
        prompt_token_ids=group.prompt_token_ids,
        samples=[sample_to_proto(sample) for sample in group.samples],
    )


def group_from_proto(message: sample_pb2.Group) -> Group:
    """The group of a message.

    Raises:
        InvalidInputError: a sample breaks its contract.
    """
    return Group(
        group_id=message.group_id,
        round=message.round,
        position=message.position,
        prompt_token_ids=tuple(message.prompt_token_ids),
        samples=tuple(sample_from_proto(sample) for sample in message.samples),
    )


def group_to_bytes(group: Group) -> bytes:
    """The group as the bytes of one stream entry."""
    return group_to_proto(group).SerializeToString()


def group_from_bytes(data: bytes) -> Group:
    """The group of a stream entry.

    Raises:
        InvalidInputError: the bytes are no group.
    """
    message = sample_pb2.Group()
    try:
        message.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError differs between its backends
        raise InvalidInputError(f"a stream entry of {len(data)} bytes is no Group message: {error}") from error
    return group_from_proto(message)
