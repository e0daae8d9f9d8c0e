"""Lightning: its trainer finds the TPU's cores by PyTorch/XLA, or takes the CPU."""

import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

BATCH = 80


def examples(count: int, seed: int) -> DataLoader:
    """Return features of ten classes, a pattern each under noise, and their classes."""
    patterns = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(seed)
    classes = torch.randint(10, (count,), generator=random)
    features = patterns[classes] + 2 * torch.randn(count, 64, generator=random)
    return DataLoader(TensorDataset(features, classes), BATCH)


class Network(lightning.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        self.layers = torch.nn.Sequential(*layers)

    def on_fit_start(self) -> None:
        """Say what it trains on."""
        if self.global_rank == 0:
            print(f"devices: {self.trainer.world_size} x {self.device.type}", flush=True)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss."""
        features, classes = batch
        return torch.nn.functional.cross_entropy(self.layers(features), classes)

    def test_step(self, batch: list[torch.Tensor], index: int) -> None:
        """Count the right answers."""
        features, classes = batch
        right = (self.layers(features).argmax(1) == classes).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters())


def main() -> None:
    """Train, and print the accuracy."""
    trainer = lightning.Trainer(
        accelerator="tpu" if os.environ.get("PJRT_DEVICE") == "TPU" else "cpu",
        devices="auto",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    network = Network()
    trainer.fit(network, examples(4000, 1))
    (result,) = trainer.test(network, examples(800, 2), verbose=False)
    print(f"accuracy: {result['accuracy']:.3f}")


if __name__ == "__main__":
    main()
