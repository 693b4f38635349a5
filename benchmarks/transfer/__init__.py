"""Which pretrained model to start from: every score against fine-tuning, on one zoo.

``python -m benchmarks.transfer table`` prints the measured tables; README.md says how to measure
them again.
"""
