"""Mamba-2's layer of transformers, over trees of tokens: its own weights, our scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..tree_scan import parents_of, state_behind, tree_conv, tree_scan
from .entry_cache import Run, States

PARTS = ("in_proj", "conv1d", "out_proj", "A_log", "dt_bias", "D")
SIZES = ("num_heads", "head_dim", "n_groups", "ssm_state_size", "intermediate_size")
CHUNK = 64  # tokens of a chain at once: a scan's work grows with the square
TRIED = 3  # tokens to compare with the layer's own pass
CLOSE, COARSE = 1e-3, 5e-2  # most deviation, in float32 or wider and in other types


class TreeMixer:
    """A layer of Mamba-2, read from a module of transformers and run over trees.

    What it keeps of a token is what later ones need of it, and what replays its path: the input of
    the convolution and the step, behind the first projection.

    Args:
        module: such as `Mamba2Mixer`; see `of`.

    Attributes:
        packed: its runs are over whole trees, see `runs_of`.
        width: of what is kept of a token.
    """

    packed = True

    def __init__(self, module: nn.Module) -> None:
        self.module = cast(Any, module)
        m = self.module
        self.heads, self.size = m.num_heads, m.head_dim
        self.groups, self.places = m.n_groups, m.ssm_state_size
        self.inner = m.intermediate_size
        self.channels, _, self.taps = m.conv1d.weight.shape
        self.width = self.channels + self.heads

    @classmethod
    @torch.no_grad()
    def of(cls, module: nn.Module, like: Tensor) -> TreeMixer | None:
        """A module's layer; None: it is not Mamba-2's, as its own forward pass of tokens says.

        Args:
            module: a layer that keeps a state.
            like: its inputs are like those, `[…, D]`.
        """
        if not all(hasattr(module, name) for name in (*PARTS, *SIZES)):
            return None
        x = torch.linspace(-1, 1, TRIED * like.shape[-1]).to(like).view(1, TRIED, -1)
        mixer = cls(module)
        try:
            ours, own = mixer(x).double(), mixer.module(x).double()
        except (RuntimeError, TypeError, ValueError, AttributeError):
            return None  # parts of these names that do something else
        close = CLOSE if torch.finfo(like.dtype).bits >= 32 else COARSE
        return mixer if bool((ours - own).norm() <= close * own.norm()) else None

    def states(self, like: Tensor) -> States:
        """States in front of one row's first token: inputs of the convolution, the scan's state."""
        like = like.to(self.module.A_log.device)
        conv = like.new_zeros(1, self.taps - 1, self.channels)
        return [conv, self._exact(like.new_zeros(1, self.heads, self.size, self.places))]

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs `[S, T, D]` of chains that begin here."""
        entries, gate = self.read(x)
        states = [state.expand(len(x), *state.shape[1:]) for state in self.states(x)]
        return self.write([self.chains(entries, states)[0]], gate)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Entries to keep `[R, T, width]` of inputs `[R, T, D]`, and the gates `[R, T, inner]`."""
        m = self.module
        told = m.in_proj(x * getattr(m, "ssm_in_multiplier", 1.0))
        told = told * getattr(m, "mup_vector", 1.0)
        gate, entries = told.split([self.inner, self.width], dim=-1)
        return entries, gate

    def over(
        self, run: Run, entries: Tensor, states: States, *given: Any
    ) -> tuple[list[Tensor], States]:
        """Values for the gates, and states behind chains; `given` is nothing to it."""
        if run.family is None:
            out, states = self.chains(entries, states)
            return [out], states
        return [self.trees(entries, run.family, states)], states

    def trees(self, entries: Tensor, family: Tensor, states: States) -> Tensor:
        """Values for the gates, of trees in one pass `[S, T, inner]`.

        Args:
            entries: `[S, T, width]`, see `read`.
            family: `[S, T, T]`, see `tree_scan`.
            states: in front of the roots, see `states`.
        """
        return self._scan(self._mixed(entries, family, states[0]), family, states[1])

    def chains(self, entries: Tensor, states: States) -> tuple[Tensor, States]:
        """Values for the gates of chains, which may be long, and the states behind; see `trees`."""
        told = []
        for part in entries.split(CHUNK, dim=1):
            rows, count = part.shape[:2]
            family = torch.ones(count, count, dtype=torch.bool, device=part.device).tril()
            family = family.expand(rows, -1, -1)
            mixed = self._mixed(part, family, states[0])
            told.append(self._scan(mixed, family, states[1]))
            last = torch.full((rows,), count - 1, device=part.device)
            inputs = torch.cat([states[0], part[..., : self.channels]], dim=1)
            x, step, decay, b, _ = mixed
            behind = state_behind(x, step, decay, b, family, states[1], last)
            states = [inputs[:, count:], behind]
        return torch.cat(told, dim=1), states

    def _scan(self, mixed: tuple[Tensor, ...], family: Tensor, state: Tensor) -> Tensor:
        x, step, decay, b, c = mixed
        out = tree_scan(x, step, decay, b, c, family, state)
        return (out + x * self._exact(self.module.D)[:, None]).flatten(-2)

    def _mixed(self, entries: Tensor, family: Tensor, conv: Tensor) -> tuple[Tensor, ...]:
        """Arguments of `tree_scan`: x, step, decay, b and c."""
        m = self.module
        inputs, step = entries.split([self.channels, self.heads], dim=-1)
        weight, bias = m.conv1d.weight[:, 0], m.conv1d.bias
        mixed = self._exact(m.act(tree_conv(inputs, parents_of(family), conv, weight, bias)))
        grouped = self.groups * self.places
        x, b, c = mixed.split([self.inner, grouped, grouped], dim=-1)
        b, c = (part.unflatten(-1, (self.groups, self.places)) for part in (b, c))
        step = nn.functional.softplus(self._exact(step) + self._exact(m.dt_bias))
        step = step.clamp(*getattr(m, "time_step_limit", (0.0, torch.inf)))
        return x.unflatten(-1, (self.heads, self.size)), step, -self._exact(m.A_log).exp(), b, c

    def write(self, answers: Sequence[Tensor], gate: Tensor) -> Tensor:
        """Outputs `[R, T, D]` of what a scan says, `[R, T, inner]`."""
        m, (out,) = self.module, answers
        if getattr(m, "mamba_rms_norm", True):
            out = m.norm(out, gate)
        else:
            out = out * nn.functional.silu(gate)
        closed: Tensor = m.out_proj(out.to(gate.dtype))
        return closed

    @staticmethod
    def _exact(values: Tensor) -> Tensor:
        """Values in float32 or wider: sums of log-decays need the digits."""
        return values.to(torch.promote_types(values.dtype, torch.float32))
