"""The papers' experiments, run and judged: a laboratory, a ledger, and one package per paper."""
