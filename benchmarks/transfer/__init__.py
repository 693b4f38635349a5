"""Which pretrained model to start from: every score compared with fine-tuning, on the same models.

``python -m benchmarks.transfer table`` prints the measured tables; README.md says how to measure
them again.
"""
