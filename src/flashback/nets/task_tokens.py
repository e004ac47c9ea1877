"""The network of DyTox: patches of a shared encoder, and one token and one classifier for each task."""

import math

import torch
from torch import Tensor, nn

from flashback.nets.base import Backbone, Net, Output, full_precision
from flashback.nets.convit import DROP_PATH, heads_for, merge_heads, mlp, plain_linear, split_heads


class TaskTokenNet(Net):
    """An encoder, a task-attention block that all tasks share, and a token with a classifier for each task.

    The embedding e_i of task i is what its token takes from the patches; its classifier sees e_i alone (Douillard
    et al. 2022). The features are all embeddings side by side.

    Args:
        backbone: The encoder; the pixels of its last feature maps are the patches.
        classes: The classes of the first task.
    """

    features_from_backbone = False
    head: nn.ModuleList  # the classifiers

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__(backbone, nn.ModuleList())
        self.attention = TaskAttention(backbone.width)
        self.tokens = nn.ParameterList()
        self.columns = 0
        self.grow(classes)

    def grow(self, classes: int) -> None:
        """Add a token and a classifier for the classes of a new task; `classes` counts the earlier ones too."""
        self.tokens.append(nn.Parameter(nn.init.trunc_normal_(torch.empty(self.backbone.width), std=0.02)))
        self.head.append(normed_linear(self.backbone.width, classes - self.columns))
        self.columns = classes

    @property
    def feature_width(self) -> int:
        return len(self.tokens) * self.backbone.width

    def train_only(self, tasks: range, backbone: bool) -> None:
        """Train the task attention, the tokens and classifiers of these tasks, and the encoder or not."""
        self.backbone.set_trainable(backbone)
        for task, (token, classifier) in enumerate(zip(self.tokens, self.head, strict=True)):
            token.requires_grad_(task in tasks)
            classifier.requires_grad_(task in tasks)

    def forward(self, x: Tensor) -> Output:
        patches = self.backbone.stage_maps(x)[-1].flatten(2).transpose(1, 2)
        embeddings = self.attention(torch.stack(list(self.tokens)), patches).float()
        with full_precision(embeddings):
            pairs = zip(self.head, embeddings.unbind(1), strict=True)
            logits = torch.cat([classifier(embedding) for classifier, embedding in pairs], dim=1)
        return Output(embeddings.flatten(1), logits)


class TaskAttention(nn.Module):
    """A transformer block in which the token of a task looks at itself and at the patches.

    Tokens do not see each other, so all of them go through at once and the patches are projected once.
    """

    shared_by_tasks = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.count = heads_for(width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (plain_linear(width, width, bias=False) for _ in range(3))
        self.project = plain_linear(width, width)
        self.mlp = mlp(width)
        self.drop_path = nn.Dropout1d(DROP_PATH)  # of a token and an image

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        """Compute the embeddings [B, tasks, width] of tokens [tasks, width] and patches [B, n, width]."""
        token, patch = self.norm1(tokens), self.norm1(patches)
        query, token_key, token_value = (self.heads(part(token)) for part in (self.query, self.key, self.value))
        key, value = (self.heads(part(patch)) for part in (self.key, self.value))
        self_score = (
            (query * token_key).sum(-1, keepdim=True).expand(patches.shape[0], -1, -1, -1)
        )  # [B, heads, tasks, 1]
        scores = torch.cat([self_score, query @ key.mT], dim=-1) / math.sqrt(query.shape[-1])
        to_itself, to_patches = scores.softmax(dim=-1).to(value.dtype).tensor_split([1], dim=-1)
        mixed = to_itself * token_value + to_patches @ value
        embeddings = tokens + self.drop_path(self.project(merge_heads(mixed)))
        mapped: Tensor = embeddings + self.drop_path(self.mlp(self.norm2(embeddings)))
        return mapped

    def heads(self, x: Tensor) -> Tensor:
        return split_heads(x, self.count)


def normed_linear(width: int, classes: int) -> nn.Sequential:
    """A classifier of DyTox: layer norm, then a linear layer."""
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))
