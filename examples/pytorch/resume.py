"""A loop of one's own in PyTorch that resumes: `tpu_core` gives it a lease and a ledger."""

import io
import os

import torch

import tpu_core

try:
    import torch_xla
except ImportError:  # Then on the CPU.
    torch_xla = None

STEPS, SAVE_EVERY, FILE = 200, 50, "checkpoint.pt"


def main() -> None:
    """Train to the last step, from the newest checkpoint if there is one."""
    step, network = 0, torch.nn.Linear(8, 1).to(torch_xla.device() if torch_xla else "cpu")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with tpu_core.run(os.environ.get("MODEL_DIR", "model")) as run:
        if saved := run.read(FILE):
            step, weights = torch.load(io.BytesIO(saved), map_location="cpu")
            network.load_state_dict(weights)
        print(f"step {step}; the start before came to step {run.done}", flush=True)
        run.step(step)
        while step < STEPS:
            inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
            inputs = inputs.to(network.weight.device)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(network(inputs), inputs.sum(1, keepdim=True)).backward()
            optimizer.step()
            if torch_xla:
                torch_xla.sync()
            step += 1
            if run.step(step) or step % SAVE_EVERY == 0:
                weights = {name: value.cpu() for name, value in network.state_dict().items()}
                torch.save((step, weights), file := io.BytesIO())
                run.save(FILE, file.getvalue())
    print(f"error: {(network.weight - 1).abs().max().item():.6f}")


if __name__ == "__main__":
    main()
