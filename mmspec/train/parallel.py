"""Training in several processes, one a device, as `accelerate launch` or `torchrun` starts them.

Every process draws data of its own, and all of them take the same step: that of the mean gradient.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import absent

_APART = 1_000_003  # between the seeds of two processes


@dataclass(frozen=True)
class Processes:
    """This process among those that train a model together; by default it is alone.

    Attributes:
        index: its number; the first one evaluates, logs, saves and exports.
        count: how many there are.
        device: its own.
    """

    index: int = 0
    count: int = 1
    device: str = "cpu"

    @classmethod
    def launched(cls, device: str) -> Processes:
        """The processes that a launcher has started, on devices of the kind `device`.

        Raises:
            InputError: there are several, and accelerate is not installed.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls(device=device)
        try:
            from accelerate import PartialState
        except ImportError as error:
            raise absent("several processes need accelerate", "multi-gpu") from error
        state = PartialState(cpu=torch.device(device).type == "cpu")
        # threads that wait for the others would abort a process that ends with them
        atexit.register(state.destroy_process_group)
        # accelerate numbers even processors, which checkpoints cannot be mapped to
        own = "cpu" if state.device.type == "cpu" else str(state.device)
        return cls(state.process_index, state.num_processes, own)

    @property
    def first(self) -> bool:
        """True for the process that writes."""
        return self.index == 0

    def seed(self, seed: int) -> int:
        """The seed of its data; the first one's is the run's."""
        return seed + _APART * self.index

    def run_seed(self, seed: int) -> int:
        """The run's seed, of that of this process."""
        return seed - _APART * self.index

    def share_gradients(self, weights: Iterable[nn.Parameter]) -> None:
        """Put the mean of all processes' gradients into every one of them.

        Where some have none it counts as zero; where all have none there is none.
        """
        if self.count == 1:
            return
        from accelerate.utils import reduce

        weights = list(weights)
        there = torch.tensor([float(w.grad is not None) for w in weights], device=self.device)
        for weight, any_has in zip(weights, reduce(there, "mean").tolist(), strict=True):
            if any_has:
                own = torch.zeros_like(weight) if weight.grad is None else weight.grad
                weight.grad = reduce(own, "mean")

    def told(self, tensor: Tensor, index: int) -> Tensor:
        """Send the tensor of process `index` to all of them."""
        if self.count == 1:
            return tensor
        from accelerate.utils import broadcast

        return broadcast(tensor.contiguous(), from_process=index)

    def agreed(self, value: float) -> float:
        """The first process's value: clocks differ, and all must end at the same step."""
        if self.count == 1:
            return value
        return float(self.told(torch.tensor([value], device=self.device), 0))

    def wait(self) -> None:
        """Wait until all are here: then every one finds what the first one has written."""
        if self.count == 1:
            return
        from accelerate import PartialState

        PartialState().wait_for_everyone()
