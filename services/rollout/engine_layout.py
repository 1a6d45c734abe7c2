"""What fills each parameter of one SGLang 0.5.20 rank: the layout table of Glm4MoeForCausalLM and its MTP draft.

Legend: H hidden size, V vocabulary, I inner size, E experts, L decoder layers. Sharing follows SGLang: rank r of n
takes the r-th of n equal slices of a sharded dimension. Holds for unquantised models without shared-expert fusion.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from services.common.errors import ConfigError
from services.weights.transfer import Box, EngineRankLayout, EngineSlice, EngineTensor

# SGLang pads the vocabulary to this multiple (DEFAULT_VOCAB_PADDING_SIZE).
VOCABULARY_MULTIPLE = 64
# On a CPU SGLang pads each inner size to this multiple per rank (DEFAULT_MOE_PADDING_SIZE).
INNER_MULTIPLE_PER_RANK = 32


def engine_rank_layout(
    hub_config: Mapping[str, object], *, tp: int, rank: int, ep: int, dtype: str, has_draft: bool
) -> EngineRankLayout:
    """All parameters of one rank, of the target and, with has_draft, of the MTP draft.

    Embedding and output head, which the draft shares with the target, appear once, under the target.

    Args:
        hub_config: config.json as published, not as SGLang changes it.
        dtype: "float32" or "bfloat16"; the router is float32 whatever it is.

    Raises:
        ConfigError: the model does not divide by the ranks, or a key is missing.
    """
    sizes = _Sizes.read(hub_config)
    place = _Place(tp=tp, rank=rank, ep=ep)
    _check(sizes, place, has_draft=has_draft)
    tensors = list(_Table(model="target", sizes=sizes, place=place, dtype=dtype).target())
    if has_draft:
        tensors += _Table(model="draft", sizes=sizes, place=place, dtype=dtype).draft()
    return EngineRankLayout(rank=rank, tensors=tuple(tensors))


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The numbers of config.json that decide shapes; names as there."""

    hidden_size: int
    """H."""
    vocab_size: int
    """V."""
    num_hidden_layers: int
    """L, the MTP layer not counted."""
    first_k_dense_replace: int
    """Leading dense layers."""
    num_attention_heads: int
    """Query heads."""
    num_key_value_heads: int
    """Key and value heads."""
    head_dim: int
    """Size of a head."""
    intermediate_size: int
    """I of a dense layer."""
    moe_intermediate_size: int
    """I of an expert."""
    n_routed_experts: int
    """E."""
    n_shared_experts: int
    """Experts every token passes, merged into one."""
    num_nextn_predict_layers: int
    """MTP layers."""
    attention_bias: bool
    """Whether q, k and v have biases."""
    use_qk_norm: bool
    """Whether q and k are normalised per head."""
    tie_word_embeddings: bool
    """Whether the output head is the embedding."""

    @classmethod
    def read(cls, hub_config: Mapping[str, object]) -> "_Sizes":
        """The numbers of a config.json.

        Raises:
            ConfigError: one is missing or no number.
        """
        values: dict[str, int] = {}
        for name in cls.__dataclass_fields__:
            value = hub_config.get(name)
            if not isinstance(value, int):
                raise ConfigError(f"config.json has {name}={value!r}; a GLM-4.5 model has a number or true/false there")
            values[name] = value
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A rank of an engine."""

    tp: int
    """Tensor-parallel ranks."""
    rank: int
    """This one."""
    ep: int
    """Groups the experts are spread over."""

    @property
    def expert_tp(self) -> int:
        """Ranks that share one expert."""
        return self.tp // self.ep

    @property
    def expert_tp_rank(self) -> int:
        """This one's among them."""
        return self.rank % self.expert_tp

    @property
    def expert_rank(self) -> int:
        """Which group of experts it holds."""
        return self.rank // self.expert_tp


@dataclass(frozen=True, kw_only=True)
class _Share:
    """A rank's part of one dimension."""

    size: int
    """Its length in the engine, padding included."""
    start: int
    """First index in the hub tensor."""
    filled: int
    """Indices that the hub tensor has; the rest is padding."""


def _check(sizes: _Sizes, place: _Place, *, has_draft: bool) -> None:
    tp, ep = place.tp, place.ep
    for what, number, divisor in (
        ("rollout.engine.tp", tp, ep),
        ("num_attention_heads", sizes.num_attention_heads, tp),
        ("n_routed_experts", sizes.n_routed_experts, ep),
    ):
        if number % divisor:
            raise ConfigError(f"{what} is {number}, wanted a multiple of {divisor} for tp {tp} and ep {ep}; lower them")
    if sizes.num_key_value_heads % tp and tp % sizes.num_key_value_heads:
        raise ConfigError(
            f"num_key_value_heads is {sizes.num_key_value_heads}, which neither divides nor is a multiple of tp {tp}; "
            "set rollout.engine.tp to one that does"
        )
    if sizes.tie_word_embeddings:
        raise ConfigError("tie_word_embeddings is true, wanted false as in GLM-4.5; untie the model")
    if has_draft and sizes.num_nextn_predict_layers != 1:
        raise ConfigError(
            f"num_nextn_predict_layers is {sizes.num_nextn_predict_layers}, speculation wants 1; set "
            "rollout.engine.speculation.enabled=false for a model without an MTP layer"
        )


def _share(size: int, *, parts: int, part: int, multiple: int = 1) -> _Share:
    """Part of a dimension that is padded to a multiple before it is cut into equal parts."""
    own = -(-size // multiple) * multiple // parts
    start = min(part * own, size)
    return _Share(size=own, start=start, filled=min(own, size - start))


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Lists the parameters of one model in one rank."""

    model: str
    """"target" or "draft"."""
    sizes: _Sizes
    """The model's."""
    place: _Place
    """The rank."""
    dtype: str
    """Of all parameters but the router's."""

    def target(self) -> Iterator[EngineTensor]:
        """Every parameter of the target."""
        yield self._vocabulary("model.embed_tokens.weight")
        for layer in range(self.sizes.num_hidden_layers):
            prefix = f"model.layers.{layer}"
            yield from self._layer(prefix, prefix, is_dense=layer < self.sizes.first_k_dense_replace)
        yield self._copy("model.norm.weight", "model.norm.weight", self.sizes.hidden_size)
        yield self._vocabulary("lm_head.weight")

    def draft(self) -> Iterator[EngineTensor]:
        """Every parameter of the draft that is its own."""
        hidden, source = self.sizes.hidden_size, f"model.layers.{self.sizes.num_hidden_layers}"
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            yield self._copy(f"model.{norm}.weight", f"{source}.{norm}.weight", hidden)
        yield self._copy("model.eh_proj.weight", f"{source}.eh_proj.weight", hidden, 2 * hidden)
        yield from self._layer("model.decoder", source, is_dense=False)

    def _layer(self, name: str, source: str, *, is_dense: bool) -> Iterator[EngineTensor]:
        sizes = self.sizes
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield self._copy(f"{name}.{norm}.weight", f"{source}.{norm}.weight", sizes.hidden_size)
        yield from self._attention(f"{name}.self_attn", f"{source}.self_attn")
        if is_dense:
            yield from self._feed_forward(f"{name}.mlp", f"{source}.mlp", self._inner_share(sizes.intermediate_size))
        else:
            yield from self._experts(f"{name}.mlp", f"{source}.mlp")

    def _attention(self, name: str, source: str) -> Iterator[EngineTensor]:
        sizes, tp, rank = self.sizes, self.place.tp, self.place.rank
        queries = _share(sizes.num_attention_heads * sizes.head_dim, parts=tp, part=rank)
        # With fewer key-value heads than ranks, neighbouring ranks hold the same head.
        num_parts = min(tp, sizes.num_key_value_heads)
        keys = _share(sizes.num_key_value_heads * sizes.head_dim, parts=num_parts, part=rank * num_parts // tp)
        parts = (("q", queries), ("k", keys), ("v", keys))
        yield self._stacked(
            f"{name}.qkv_proj.weight", [(f"{source}.{p}_proj.weight", share) for p, share in parts], sizes.hidden_size
        )
        if sizes.attention_bias:
            yield self._stacked(f"{name}.qkv_proj.bias", [(f"{source}.{p}_proj.bias", share) for p, share in parts])
        yield self._columns(f"{name}.o_proj.weight", f"{source}.o_proj.weight", queries)
        if sizes.use_qk_norm:
            for norm in ("q_norm", "k_norm"):
                yield self._copy(f"{name}.{norm}.weight", f"{source}.{norm}.weight", sizes.head_dim)

    def _feed_forward(self, name: str, source: str, inner: _Share) -> Iterator[EngineTensor]:
        gate_and_up = [(f"{source}.{p}_proj.weight", inner) for p in ("gate", "up")]
        yield self._stacked(f"{name}.gate_up_proj.weight", gate_and_up, self.sizes.hidden_size)
        yield self._columns(f"{name}.down_proj.weight", f"{source}.down_proj.weight", inner)

    def _experts(self, name: str, source: str) -> Iterator[EngineTensor]:
        sizes = self.sizes
        for router, shape in (
            ("gate.weight", (sizes.n_routed_experts, sizes.hidden_size)),
            ("gate.e_score_correction_bias", (sizes.n_routed_experts,)),
        ):
            yield self._copy(f"{name}.{router}", f"{source}.{router}", *shape, dtype="float32")
        yield from self._routed_experts(name, source)
        if sizes.n_shared_experts:
            shared = self._inner_share(sizes.moe_intermediate_size * sizes.n_shared_experts)
            yield from self._feed_forward(f"{name}.shared_experts", f"{source}.shared_experts", shared)

    def _routed_experts(self, name: str, source: str) -> Iterator[EngineTensor]:
        sizes, place, hidden = self.sizes, self.place, self.sizes.hidden_size
        num_experts = sizes.n_routed_experts // place.ep
        inner = _share(
            sizes.moe_intermediate_size,
            parts=place.expert_tp,
            part=place.expert_tp_rank,
            multiple=INNER_MULTIPLE_PER_RANK * place.tp,
        )
        gate_and_up: list[EngineSlice] = []
        down: list[EngineSlice] = []
        for index in range(num_experts):
            expert = f"{source}.experts.{place.expert_rank * num_experts + index}"
            rows = Box(starts=(inner.start, 0), sizes=(inner.filled, hidden))
            for half, projection in enumerate(("gate", "up")):
                block = Box(starts=(index, half * inner.size, 0), sizes=(1, inner.filled, hidden))
                gate_and_up.append(
                    EngineSlice(tensor=f"{expert}.{projection}_proj.weight", source=rows, destination=block)
                )
            down.append(
                EngineSlice(
                    tensor=f"{expert}.down_proj.weight",
                    source=Box(starts=(0, inner.start), sizes=(hidden, inner.filled)),
                    destination=Box(starts=(index, 0, 0), sizes=(1, hidden, inner.filled)),
                )
            )
        yield self._tensor(f"{name}.experts.w13_weight", (num_experts, 2 * inner.size, hidden), gate_and_up)
        yield self._tensor(f"{name}.experts.w2_weight", (num_experts, hidden, inner.size), down)

    def _inner_share(self, size: int) -> _Share:
        multiple = INNER_MULTIPLE_PER_RANK * self.place.tp
        return _share(size, parts=self.place.tp, part=self.place.rank, multiple=multiple)

    def _vocabulary(self, name: str) -> EngineTensor:
        rows = _share(self.sizes.vocab_size, parts=self.place.tp, part=self.place.rank, multiple=VOCABULARY_MULTIPLE)
        return self._stacked(name, [(name, rows)], self.sizes.hidden_size)

    def _copy(self, name: str, source: str, *shape: int, dtype: str = "") -> EngineTensor:
        whole = Box(starts=(0,) * len(shape), sizes=shape)
        return self._tensor(name, shape, [EngineSlice(tensor=source, source=whole, destination=whole)], dtype)

    def _stacked(self, name: str, parts: list[tuple[str, _Share]], *columns: int) -> EngineTensor:
        """Rows of several hub tensors, one block under the other; without columns, of vectors."""
        slices: list[EngineSlice] = []
        num_rows = 0
        for source, share in parts:
            rest = (0,) * len(columns)
            block = Box(starts=(share.start, *rest), sizes=(share.filled, *columns))
            target = Box(starts=(num_rows, *rest), sizes=(share.filled, *columns))
            slices.append(EngineSlice(tensor=source, source=block, destination=target))
            num_rows += share.size
        return self._tensor(name, (num_rows, *columns), slices)

    def _columns(self, name: str, source: str, share: _Share) -> EngineTensor:
        hidden = self.sizes.hidden_size
        block = Box(starts=(0, share.start), sizes=(hidden, share.filled))
        target = Box(starts=(0, 0), sizes=(hidden, share.filled))
        part = EngineSlice(tensor=source, source=block, destination=target)
        return self._tensor(name, (hidden, share.size), [part])

    def _tensor(self, name: str, shape: tuple[int, ...], slices: list[EngineSlice], dtype: str = "") -> EngineTensor:
        filled = tuple(part for part in slices if part.destination.num_elements)
        return EngineTensor(model=self.model, name=name, shape=shape, dtype=dtype or self.dtype, slices=filled)
