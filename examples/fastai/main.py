"""fastai on one device of PyTorch/XLA. fastai knows no TPU: it is given the device."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from fastai.basics import Callback, CrossEntropyLossFlat, DataLoader, DataLoaders, Learner, accuracy

BATCH = 80


class Execute(Callback):
    """Has PyTorch/XLA run what it has recorded, after each batch."""

    def after_batch(self) -> None:
        """Run it."""
        torch_xla.sync()


def examples(count: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return features of ten classes, a pattern each under noise, and their classes."""
    patterns = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(seed)
    classes = torch.randint(10, (count,), generator=random)
    features = patterns[classes] + 2 * torch.randn(count, 64, generator=random)
    return list(zip(features, classes, strict=True))


def main() -> None:
    """Train, and print device and accuracy."""
    device = torch_xla.device()
    print(f"devices: 1 x {xm.xla_device_hw(device)}", flush=True)
    loaders = DataLoaders(
        DataLoader(examples(4000, 1), bs=BATCH, shuffle=True, drop_last=True, device=device),
        DataLoader(examples(800, 2), bs=BATCH, device=device),
        device=device,
    )
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    # Before the learner makes its optimizer: moving to an XLA device makes other parameters.
    network.to(device)
    learner = Learner(
        loaders, network, loss_func=CrossEntropyLossFlat(), metrics=accuracy, cbs=Execute()
    )
    learner.fit(4, lr=1e-3)
    print(f"accuracy: {learner.validate()[1]:.3f}")


if __name__ == "__main__":
    main()
