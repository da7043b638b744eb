"""Draft heads over a frozen language model: recipe, batches, losses. Who answers lies beside it."""
