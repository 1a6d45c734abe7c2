"""Tiny GLM-4.5 folders whose MTP layer agrees with the trunk on some tokens, so that some drafts are accepted."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.common.tiny_model.making import make_tiny_model

NUM_LAYERS = 2
END_TOKEN = 0


def make_model(folder: Path, *, seed: int) -> None:
    """A hub folder of the tiny task's model with spread norms, a bias on the router and an MTP layer like the trunk."""
    make_tiny_model("tiny-task", seed=seed, folder=folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in tensors.items():
        if tensor.dim() == 1:
            tensor += 0.05 * torch.randn(tensor.shape, generator=generator)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            # Weak layers let the draft, which sees one token less of context, agree now and then.
            tensor *= 0.12
    _copy_last_layer_to_draft(tensors)
    # The end token then has logit 0, which no greedy reply picks.
    tensors["lm_head.weight"][END_TOKEN] = 0.0
    save_file(tensors, path, metadata={"format": "pt"})


def _copy_last_layer_to_draft(tensors: dict[str, Tensor]) -> None:
    last, draft = f"model.layers.{NUM_LAYERS - 1}.", f"model.layers.{NUM_LAYERS}."
    for name in [name for name in tensors if name.startswith(last)]:
        tensors[name.replace(last, draft)] = tensors[name].clone()
    hidden = tensors["model.norm.weight"].numel()
    identity = torch.eye(hidden)
    tensors[draft + "eh_proj.weight"] = torch.cat((identity, 0.12 * identity), dim=1).contiguous()
    tensors[draft + "shared_head.norm.weight"] = tensors["model.norm.weight"].clone()
