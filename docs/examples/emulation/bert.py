"""An ordinary training script: a small BERT-like model, data parallel or fully sharded. It knows nothing of emulation."""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

parser = argparse.ArgumentParser()
parser.add_argument("--mode", choices=("ddp", "fsdp"), default="ddp")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--hidden", type=int, default=256)
given = parser.parse_args()

WORDS, TOKENS, SAMPLES = 2000, 64, 4


class Bert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, given.hidden)
        self.places = torch.nn.Parameter(torch.zeros(1, TOKENS, given.hidden))
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(given.hidden, 4, 4 * given.hidden, dropout=0.0, batch_first=True) for _ in range(given.layers)
        )
        self.head = torch.nn.Linear(given.hidden, WORDS)

    def forward(self, words):
        x = self.words(words) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


torch.manual_seed(0)
dist.init_process_group("gloo")
model = Bert()
if given.mode == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=2)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(given.steps):
    words = torch.randint(0, WORDS, (SAMPLES, TOKENS))
    loss = cross_entropy(model(words).flatten(0, 1), words.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
