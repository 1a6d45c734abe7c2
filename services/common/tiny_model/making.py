"""Writes a tiny model as a hub folder: config, tokenizer and weights, the same bytes for the same preset and seed."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save
from tokenizers import Tokenizer

from services.common.errors import ConfigError
from services.common.tiny_model.architecture import (
    JsonValue,
    TinyArchitecture,
    hub_config,
    is_buffer,
    tensor_shapes,
)
from services.common.tiny_model.vocabulary import (
    CONTROL_TOKENS,
    END_TOKEN,
    PAD_TOKEN,
    byte_tokenizer,
    byte_vocabulary,
    task_tokenizer,
    task_vocabulary,
)


@dataclass(frozen=True, kw_only=True)
class TinyPreset:
    """A built-in tiny model."""

    architecture: TinyArchitecture
    """Its sizes."""
    make_tokenizer: Callable[[], Tokenizer]
    """Its tokenizer."""


PRESETS: Mapping[str, TinyPreset] = {
    "tiny-task": TinyPreset(
        architecture=TinyArchitecture(vocab_size=len(task_vocabulary())), make_tokenizer=task_tokenizer
    ),
    "tiny-byte": TinyPreset(
        architecture=TinyArchitecture(vocab_size=len(byte_vocabulary())), make_tokenizer=byte_tokenizer
    ),
}
"""By the names of model.preset: 64 entries for the built-in additions, and bytes for any text."""


def make_tiny_model(preset: str, *, seed: int, folder: Path) -> None:
    """Makes folder a hub folder of the preset; existing files are replaced one by one, the weights last.

    Matrices are normal with the architecture's standard deviation, norms one, correction biases zero, all fp32.

    Raises:
        ConfigError: there is no such preset, or the folder cannot be written.
    """
    if preset not in PRESETS:
        raise ConfigError(f"model.preset is {preset!r}; wanted one of {', '.join(sorted(PRESETS))}")
    chosen = PRESETS[preset]
    tokenizer = chosen.make_tokenizer()
    end_id, pad_id = tokenizer.token_to_id(END_TOKEN), tokenizer.token_to_id(PAD_TOKEN)
    files: dict[str, bytes] = {
        "config.json": _json_bytes(hub_config(chosen.architecture, end_token_id=end_id, pad_token_id=pad_id)),
        "generation_config.json": _json_bytes({"eos_token_id": end_id, "pad_token_id": pad_id, "do_sample": True}),
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": _json_bytes(_tokenizer_config(chosen.architecture)),
        "model.safetensors": save(initial_weights(chosen.architecture, seed=seed), metadata={"format": "pt"}),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            _replace_file(folder / name, data)
    except OSError as error:
        raise ConfigError(
            f"the tiny model cannot be written to {folder} ({error.strerror}); choose a folder with room and rights"
        ) from error


def initial_weights(
    architecture: TinyArchitecture, *, seed: int
) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Every tensor of the checkpoint by its hub name."""
    generator = np.random.default_rng(seed)
    weights = {}
    for tensor in tensor_shapes(architecture):
        if len(tensor.shape) == 2:
            values = generator.standard_normal(tensor.shape, dtype=np.float32)
            weights[tensor.name] = values * np.float32(architecture.initializer_range)
        else:
            fill = 0.0 if is_buffer(tensor.name) else 1.0
            weights[tensor.name] = np.full(tensor.shape, fill, dtype=np.float32)
    return weights


def _tokenizer_config(architecture: TinyArchitecture) -> dict[str, JsonValue]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_TOKEN,
        "pad_token": PAD_TOKEN,
        "extra_special_tokens": list(CONTROL_TOKENS[2:]),
        "clean_up_tokenization_spaces": False,
        "model_max_length": architecture.max_position_embeddings,
    }


def _json_bytes(table: dict[str, JsonValue]) -> bytes:
    return (json.dumps(table, indent=2, sort_keys=True) + "\n").encode()


def _replace_file(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)
