"""The vocabularies of the tiny models and the tokenizer.json that holds each of them."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

END_TOKEN = "<|endoftext|>"
PAD_TOKEN = "<pad>"
CONTROL_TOKENS = (END_TOKEN, PAD_TOKEN, "[gMASK]", "<sop>", "<|user|>", "<|assistant|>")
"""Tokens that structure a conversation; the same ids in every tiny vocabulary."""
THINK_TOKENS = ("<think>", "</think>")
"""Tokens of a reply that are text to the reader."""
UNKNOWN_TOKEN = "<unk>"
"""What text outside a vocabulary becomes; services.common.prompts.tokenizer refuses such text."""
# Megatron and SGLang split the vocabulary over ranks; a multiple of 64 needs no padding up to 64 ranks.
VOCABULARY_MULTIPLE = 64

_BOX_TOKENS = ("\\boxed{", "}")
_TASK_CHARACTERS = "0123456789+-*=,;:%()>‹?. <"


def task_vocabulary() -> tuple[str, ...]:
    """The 64 entries of the arithmetic task, in the order of their ids."""
    return _rounded_up((*CONTROL_TOKENS, *THINK_TOKENS, *_BOX_TOKENS, *_TASK_CHARACTERS, UNKNOWN_TOKEN))


def byte_vocabulary() -> tuple[str, ...]:
    """Control and think tokens, then the 256 bytes in the spelling of byte-level tokenizers, rounded up."""
    return _rounded_up((*CONTROL_TOKENS, *THINK_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())))


def task_tokenizer() -> Tokenizer:
    """Splits text into the task's entries, the longest first; other characters become the unknown token."""
    tokenizer = Tokenizer(models.WordLevel(vocab=_ids(task_vocabulary()), unk_token=UNKNOWN_TOKEN))
    _add_tokens(tokenizer, text_tokens=(*THINK_TOKENS, _BOX_TOKENS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def byte_tokenizer() -> Tokenizer:
    """Splits any text into its UTF-8 bytes and the control and think tokens."""
    tokenizer = Tokenizer(models.BPE(vocab=_ids(byte_vocabulary()), merges=[]))
    _add_tokens(tokenizer, text_tokens=THINK_TOKENS)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _rounded_up(entries: tuple[str, ...]) -> tuple[str, ...]:
    size = -(-len(entries) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    return entries + tuple(f"<unused{token_id}>" for token_id in range(len(entries), size))


def _ids(entries: tuple[str, ...]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(entries)}


def _add_tokens(tokenizer: Tokenizer, *, text_tokens: tuple[str, ...]) -> None:
    """Keeps the control tokens and the given ones whole, before the text between them is split."""
    tokenizer.add_special_tokens([_added(token, is_control=True) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([_added(token, is_control=False) for token in text_tokens])


def _added(token: str, *, is_control: bool) -> AddedToken:
    return AddedToken(token, special=is_control, normalized=False)
