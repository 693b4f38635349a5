"""Which sources should be added to a small labelled target set? Rules compared with fine-tuning."""
