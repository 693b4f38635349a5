"""How often the instrument's verdicts are right: runs on many tasks, the rules judged on others."""
