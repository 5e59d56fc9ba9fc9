"""The graph of an encoder: the model with its masks, the pooling or the head, and the normalization.

The model may be in 16 bits; the pooling and what follows are in 32.

The masks are ours rather than those of transformers: one value blocks a token in every precision, so that a row of
padding alone gives finite numbers, and the same text gives the same numbers in any batch.
"""

from __future__ import annotations

from typing import Any

import torch

from build_engines.encoders.settings import DECODERS
from build_engines.manifest import Pooling

# Added to the scores of blocked tokens. Its exponential is 0, and it is finite in f16 too, so that a row without any
# allowed token becomes an average and not NaN.
_BLOCKED = -30000.0


class EncoderGraph(torch.nn.Module):  # type: ignore[misc]
    """Computes [texts, dimensions] of `input_ids` and `attention_mask`, and of `token_type_ids` for models that read
    them, all [texts, tokens]. Padding may be on either side if the model is a decoder, else on the right."""

    def __init__(self, base: Any, head: torch.nn.Module) -> None:
        super().__init__()
        self.base = base
        self.head = head
        self.kind = base.config.model_type

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self.kind in DECODERS:
            hidden = self._decode(input_ids, attention_mask)
        elif self.kind == "modernbert":
            hidden = self._modernbert(input_ids, attention_mask)
        else:
            if token_type_ids is None:
                token_type_ids = torch.zeros_like(input_ids)
            hidden = self.base.embeddings(
                input_ids=input_ids, token_type_ids=token_type_ids, position_ids=self._positions(input_ids)
            )
            hidden = self.base.encoder(hidden, attention_mask=self._additive(attention_mask[:, None, None, :]))[0]
        return self.head(hidden.to(torch.float32), attention_mask, input_ids)

    def _additive(self, allowed: torch.Tensor) -> torch.Tensor:
        return _additive(allowed).to(self.base.dtype)

    def _positions(self, input_ids: torch.Tensor) -> torch.Tensor | None:
        """Return the positions of RoBERTa's tokens, which begin after the id of padding; None for BERT's own."""
        padding = getattr(self.base.embeddings, "padding_idx", None)
        if padding is None:
            return None
        real = (input_ids != padding).to(torch.float32)
        return (_count(real) * real).to(input_ids.dtype) + padding

    def _decode(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1])
        earlier = (places[:, None] >= places[None, :]).to(attention_mask.dtype)
        mask = self._additive(attention_mask[:, None, None, :] * earlier[None, None])
        # Counted from the first token of the text, so that padding before it changes nothing.
        positions = torch.relu(_count(attention_mask) - 1).to(input_ids.dtype)
        outputs = self.base(input_ids=input_ids, attention_mask=mask, position_ids=positions, use_cache=False)
        return outputs.last_hidden_state

    def _modernbert(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1])
        near = ((places[:, None] - places[None, :]).abs() <= self.base.config.local_attention // 2).to(
            attention_mask.dtype
        )
        everywhere = attention_mask[:, None, None, :]
        masks = {
            "attention_mask": self._additive(everywhere),
            "sliding_window_mask": self._additive(everywhere * near[None, None]),
        }
        hidden = self.base.embeddings(input_ids=input_ids)
        for layer in self.base.layers:
            rotary = self.base.rotary_emb(hidden, places[None], layer.attention_type)
            hidden = layer(hidden, position_embeddings=rotary, **masks)[0]
        return self.base.final_norm(hidden)


class EmbeddingHead(torch.nn.Module):  # type: ignore[misc]
    """Pools the hidden states of a text, applies the `dense` layers, and scales to length 1 if `normalize`.

    `truncate_dim` first numbers are kept. As in sentence-transformers, they are not scaled again.
    """

    def __init__(
        self, pooling: Pooling, dense: list[torch.nn.Module], normalize: bool, truncate_dim: int | None = None
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.dense = torch.nn.Sequential(*dense)
        self.normalize = normalize
        self.truncate_dim = truncate_dim

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        pooled = self.dense(pool(hidden, attention_mask, self.pooling))
        if self.normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
        return pooled if self.truncate_dim is None else pooled[:, : self.truncate_dim]


class ScoreHead(torch.nn.Module):  # type: ignore[misc]
    """The logits of a sequence classifier of transformers, from the hidden states of its base model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.kind = model.config.model_type
        self.pooling: Pooling = "cls"
        self.padding: int | None = None
        if self.kind in DECODERS:
            self.layers = torch.nn.Sequential(model.score)
            self.pooling = "last_token"
            self.padding = model.config.pad_token_id
        elif self.kind == "modernbert":
            self.layers = torch.nn.Sequential(model.head, model.classifier)
            self.pooling = model.config.classifier_pooling
        elif self.kind == "bert":
            self.layers = torch.nn.Sequential(model.bert.pooler.dense, torch.nn.Tanh(), model.classifier)
        else:
            self.layers = torch.nn.Sequential(model.classifier.dense, torch.nn.Tanh(), model.classifier.out_proj)

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        if self.padding is not None:
            # As in transformers, the last token is one without the id of padding, also inside a text, or the first.
            real = (input_ids != self.padding).to(attention_mask.dtype)
            first = (_count(attention_mask) == 1).to(attention_mask.dtype)
            attention_mask = attention_mask * torch.maximum(real, first)
        return self.layers(pool(hidden, attention_mask, self.pooling))


def pool(hidden: torch.Tensor, attention_mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Return one vector [texts, dimensions] of hidden states [texts, tokens, dimensions], without those of padding."""
    if pooling == "mean":
        weights = attention_mask[:, :, None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1.0)
    if pooling == "max":
        return (hidden + _additive(attention_mask)[:, :, None]).amax(1)
    places = torch.arange(hidden.shape[1])[None]
    place = (places * attention_mask).amax(1)
    if pooling == "cls":
        # With padding on the left, the first token is not at 0.
        place = place - attention_mask.sum(1) + 1
    # No clamp, which TensorRT has for floating-point numbers only.
    place = torch.relu(place)
    return hidden.gather(1, place[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]


def _count(real: torch.Tensor) -> torch.Tensor:
    """Count the tokens up to each one, as floating-point numbers: TensorRT has no cumulative sum of integers."""
    return real.to(torch.float32).cumsum(1)


def _additive(allowed: torch.Tensor) -> torch.Tensor:
    return (1.0 - allowed.to(torch.float32)) * _BLOCKED
