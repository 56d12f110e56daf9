"""XLNet's export to ONNX, which optimum does not have.

XLNet's classifier reads the last token, so its texts are padded on the left. Padding before a token shifts the order in which floats are
summed: the last bits of a quarter of all answers changed with their batch mates. So the graph first rotates its rows, so that the padding
is at the end, and reads the last token before it. The values are the same, and batch mates change no bit.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from sentiment_models.export.torch_onnx import write_graph

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class _Turned(torch.nn.Module):
    """XLNetForSequenceClassification on rows that are padded on the left."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> torch.Tensor:
        """Return the logits, [rows, labels]; all arguments are int64 [rows, tokens]."""
        model: Any = self.model  # its parts are made at run time
        length = input_ids.shape[1]
        kept = attention_mask.sum(1, keepdim=True)
        places = torch.remainder(torch.arange(length)[None, :] - kept, length)
        ids, mask, types = (torch.gather(array, 1, places) for array in (input_ids, attention_mask, token_type_ids))
        # Without memories, because each text is read on its own.
        states = model.transformer(input_ids=ids, attention_mask=mask, token_type_ids=types, use_mems=False)[0]
        last = (kept - 1)[:, :, None].expand(-1, -1, states.shape[2])
        logits: torch.Tensor = model.logits_proj(model.sequence_summary(torch.gather(states, 1, last)))
        return logits


def write_xlnet(model: PreTrainedModel, opset: int, path: Path) -> None:
    """Write an fp32 ONNX graph for rows that are padded on the left."""
    write_graph(_Turned(model), INPUTS, opset, path)
