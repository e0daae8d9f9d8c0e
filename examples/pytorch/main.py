"""PyTorch/XLA by PJRT: a process for each device, on each host where this script is started."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

BATCH, STEPS = 80, 200


def examples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features of ten classes, a pattern each under noise, and their classes."""
    patterns = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(seed)
    classes = torch.randint(10, (count,), generator=random)
    features = patterns[classes] + 2 * torch.randn(count, 64, generator=random)
    return features, classes


def train(_: int) -> None:
    """Train on this process' device, together with all others."""
    device, number, count = torch_xla.device(), xr.global_ordinal(), xr.world_size()
    if number == 0:
        print(f"devices: {count} x {xm.xla_device_hw(device)}", flush=True)
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    network = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(network.parameters())
    features, classes = (values.to(device) for values in examples(4000, 1))
    own = BATCH // count
    for step in range(STEPS):
        begin = (step * BATCH + number * own) % len(classes)
        part = slice(begin, begin + own)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(features[part]), classes[part]).backward()
        # Sums the gradients of all processes over their number.
        xm.optimizer_step(optimizer)
        torch_xla.sync()
    features, classes = (values.to(device) for values in examples(800, 2))
    accuracy = (network(features).argmax(1) == classes).float().mean().item()
    if number == 0:
        print(f"accuracy: {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    torch_xla.launch(train)
