"""Teach a small network to read handwritten digits, on as many processes as you like.

The 1797 images come with scikit-learn; a fifth of them is never trained on. Four ways to run this file:

    nativelaunch -n 4 examples/train_digits.py
    torchrun --nproc-per-node 4 examples/train_digits.py
    python examples/train_digits.py --launch 4
    python examples/train_digits.py                        # one process

Add ``--checkpoint digits.pt --resume``, and a run that was cut short goes on where it stopped and ends with
the same result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SPLIT_SEED = 1797  # of its own, so that no --seed moves an image from one side to the other


def load_split() -> tuple[TensorDataset, TensorDataset]:
    """Returns the training and the held-out images: 8 x 8 pixels in [0, 1], and their digits."""
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.tensor(digits, dtype=torch.long)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SPLIT_SEED))
    held_out, train = order[: len(images) // 5], order[len(images) // 5 :]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[held_out], labels[held_out])


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 4 * 4, 10),
    )


def evaluate(model: nn.Module, data: TensorDataset) -> tuple[float, float]:
    """Returns mean loss and accuracy; the ranks take turns at the images, so that none counts twice."""
    images, labels = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in data.tensors)
    model.eval()
    with torch.no_grad():
        scores: Tensor = model(images)
    model.train()
    loss = cross_entropy(scores, labels, reduction="sum").double()
    sums = torch.stack([loss, (scores.argmax(dim=1) == labels).sum().double()])
    dist.all_reduce(sums)
    mean_loss, accuracy = (sums / len(data)).tolist()
    return mean_loss, accuracy


def write_atomically(path: Path, content: object) -> None:
    """A reader, or a run that is killed right here, finds the old file or the new one, never a part."""
    draft = path.with_name(f"{path.name}.part")
    with draft.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


class Progress:
    """On rank 0: a bar where stdout is a terminal, a line per epoch elsewhere."""

    def __init__(self, epochs: int, steps: int) -> None:
        self.epochs, self.steps = epochs, steps
        self.bar = dist.get_rank() == 0 and sys.stdout.isatty()
        self.lines = dist.get_rank() == 0 and not self.bar
        self.result = ""

    def step(self, epoch: int, step: int) -> None:
        """Shows that one more batch is done."""
        if self.bar:
            filled = 30 * (epoch * self.steps + step + 1) // (self.epochs * self.steps)
            text = f"[{'#' * filled:.<30}] epoch {epoch + 1}/{self.epochs} {self.result}"
            print(f"\r{text}", end="", flush=True)

    def epoch(self, epoch: int, loss: float, accuracy: float) -> None:
        """Shows how good the model is by now."""
        self.result = f"held-out loss {loss:.4f}, accuracy {accuracy:.1%}"
        self.step(epoch, self.steps - 1)
        if self.lines:
            print(f"epoch {epoch + 1}/{self.epochs} {self.result}", flush=True)

    def close(self) -> None:
        """Leaves the bar's line."""
        if self.bar:
            print()


def rank_and_world_size() -> tuple[int, int]:
    # with --launch there is no RANK: on the only node it is the local rank
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    return int(rank), int(os.environ.get("WORLD_SIZE", "1"))


def train(args: argparse.Namespace) -> None:
    # torch reads this variable when it is imported; with --launch, rank 0 has it only since the launch
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    rank, world_size = rank_and_world_size()
    meet_at = "env://" if "MASTER_ADDR" in os.environ else "tcp://127.0.0.1:0"
    dist.init_process_group("gloo", init_method=meet_at, rank=rank, world_size=world_size)

    train_data, held_out = load_split()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(train_data, seed=args.seed)
    batches = DataLoader(train_data, batch_size=max(1, 128 // world_size), sampler=sampler)
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    first_epoch = 0
    if args.resume and args.checkpoint.exists():
        state = torch.load(args.checkpoint, weights_only=True)
        if state["seed"] != args.seed:
            raise SystemExit(f"{args.checkpoint} was made with --seed {state['seed']}, not {args.seed}")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"]
        if rank == 0:
            print(f"resumed after epoch {first_epoch} from {args.checkpoint}", flush=True)

    progress = Progress(args.epochs, len(batches))
    for epoch in range(first_epoch, args.epochs):
        # order of images and dropout follow from seed, epoch and rank alone: a resumed run draws the same
        sampler.set_epoch(epoch)
        torch.manual_seed((args.seed * 10_000 + epoch) * world_size + rank)
        for step, (images, labels) in enumerate(batches):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            progress.step(epoch, step)
        progress.epoch(epoch, *evaluate(model, held_out))
        if rank == 0 and args.checkpoint:
            state = {"epoch": epoch + 1, "seed": args.seed, "model": model.module.state_dict()}
            write_atomically(args.checkpoint, state | {"optimizer": optimizer.state_dict()})

    progress.close()

    loss, accuracy = evaluate(model, held_out)
    if rank == 0:
        print(
            f"final held-out loss {loss:.9f}, accuracy {accuracy:.2%} (ranks {world_size}, seed {args.seed})"
        )
        if args.metrics:
            epochs = {"first_epoch": first_epoch, "epochs": args.epochs}
            metrics = {"loss": loss, "accuracy": accuracy, "world_size": world_size} | epochs
            args.metrics.write_text(json.dumps(metrics) + "\n")
    dist.destroy_process_group()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Teach a small network to read handwritten digits.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, metavar="PATH", help="written at the end of each epoch")
    parser.add_argument("--resume", action="store_true", help="go on from --checkpoint, if it is there")
    parser.add_argument("--metrics", type=Path, metavar="PATH", help="where to write the result as JSON")
    parser.add_argument("--launch", type=int, metavar="N", help="be rank 0 and start ranks 1 to N-1")
    args = parser.parse_args()
    if args.resume and not args.checkpoint:
        parser.error("--resume needs --checkpoint")
    return args


def main() -> None:
    args = parse_args()
    if args.launch is None:
        train(args)
        return
    from nativelaunch.environments import LocalEnvironment
    from nativelaunch.launchers import SubprocessScriptLauncher

    with SubprocessScriptLauncher(LocalEnvironment(), num_processes=args.launch, num_nodes=1) as launcher:
        launcher.launch(train, args)


if __name__ == "__main__":
    main()
