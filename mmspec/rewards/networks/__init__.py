"""Networks behind rewards and features: they import torch, so no declaration lies here."""
