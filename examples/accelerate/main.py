"""Accelerate on PyTorch/XLA: a plain loop of PyTorch, started once for each device."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

BATCH, EPOCHS = 80, 4


def examples(count: int, seed: int, batch: int) -> DataLoader:
    """Return features of ten classes, a pattern each under noise, and their classes."""
    patterns = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(seed)
    classes = torch.randint(10, (count,), generator=random)
    features = patterns[classes] + 2 * torch.randn(count, 64, generator=random)
    return DataLoader(TensorDataset(features, classes), batch, drop_last=True)


def train(_: int) -> None:
    """Train on this process' device, together with all others."""
    accelerator = Accelerator()
    state = accelerator.state
    if state.is_main_process:
        print(f"devices: {state.num_processes} x {xm.xla_device_hw(state.device)}", flush=True)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(network.parameters())
    own = BATCH // state.num_processes
    network, optimizer, batches, tests = accelerator.prepare(
        network, optimizer, examples(4000, 1, own), examples(800, 2, own)
    )
    for _ in range(EPOCHS):
        for features, classes in batches:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(network(features), classes))
            optimizer.step()
    right = [(network(features).argmax(1) == classes).float() for features, classes in tests]
    accuracy = accelerator.gather(torch.cat(right)).mean().item()
    if state.is_main_process:
        print(f"accuracy: {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    torch_xla.launch(train)
