"""The measures of the five families, as pure functions on tensors."""
