"""What transformers says about a tiny GLM-4.5 and, layer by layer, about its MTP draft."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Glm4MoeForCausalLM
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer

from tests.integration.sglang_process.hub_models import END_TOKEN, NUM_LAYERS


class Reference:
    """One model, evaluated without cache or batch."""

    def __init__(self, folder: Path) -> None:
        self._model = Glm4MoeForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
        ).eval()
        prefix = f"model.layers.{NUM_LAYERS}."
        tensors = load_file(folder / "model.safetensors")
        self._draft = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        self._draft_layer = self._load_draft_layer()

    @torch.no_grad()
    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The likeliest continuation."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self._model(torch.tensor([tokens])).logits[0, -1].argmax()))
            if tokens[-1] == END_TOKEN:
                break
        return tokens[len(prompt) :]

    @torch.no_grad()
    def distributions(self, prompt: Sequence[int], response: Sequence[int], temperature: float) -> Tensor:
        """[T, V] log-probabilities before each token of the response."""
        logits = self._model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        return torch.log_softmax(logits / temperature, dim=-1)

    @torch.no_grad()
    def num_verify_steps(self, prompt: Sequence[int], response: Sequence[int]) -> int:
        """Verify steps that one draft token per step takes to make a greedy response.

        The prompt's own pass makes the first token. A step then makes one token more, and a second if the draft for it
        was right.
        """
        tokens = [*prompt, *response]
        drafts = self._drafts(tokens)
        newest, num_steps = len(prompt), 0
        while newest < len(tokens) - 1:
            num_steps += 1
            newest += 2 if drafts[newest - 1] == tokens[newest + 1] else 1
        return num_steps

    def _drafts(self, tokens: Sequence[int]) -> list[int]:
        """Draft for token i + 2 from the trunk's state at i and token i + 1, for every i."""
        ids, draft = torch.tensor([tokens]), self._draft
        state = self._model.model(ids).last_hidden_state[:, :-1]
        embedded = self._model.model.embed_tokens(ids[:, 1:])
        both = (self._norm(embedded, draft["enorm.weight"]), self._norm(state, draft["hnorm.weight"]))
        inputs = torch.cat(both, dim=-1) @ draft["eh_proj.weight"].T
        length = inputs.shape[1]
        positions = torch.arange(length)[None]
        output = self._draft_layer(
            inputs,
            attention_mask=torch.full((length, length), -torch.inf).triu(1)[None, None],
            position_embeddings=self._model.model.rotary_emb(inputs, positions),
            position_ids=positions,
        )
        logits = self._model.lm_head(self._norm(output, draft["shared_head.norm.weight"]))
        return [int(token) for token in logits[0].argmax(-1)]

    def _norm(self, values: Tensor, weight: Tensor) -> Tensor:
        mean_square = values.pow(2).mean(-1, keepdim=True)
        return values * torch.rsqrt(mean_square + self._model.config.rms_norm_eps) * weight

    def _load_draft_layer(self) -> Glm4MoeDecoderLayer:
        layer = Glm4MoeDecoderLayer(self._model.config, NUM_LAYERS - 1).float().eval()
        weights = dict(self._draft)
        experts = range(self._model.config.n_routed_experts)
        for fused, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            weights[f"mlp.experts.{fused}"] = torch.stack(
                [torch.cat([weights[f"mlp.experts.{e}.{part}.weight"] for part in parts]) for e in experts]
            )
        wanted = layer.state_dict()
        layer.load_state_dict({name: weights[name] for name in wanted})
        return layer
