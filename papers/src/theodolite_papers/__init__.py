"""Experiments of five papers: shared code (``lab``), verdicts (``ledger``), a package per paper."""
