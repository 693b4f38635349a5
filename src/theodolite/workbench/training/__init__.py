"""Training: losses, schedules, one loop."""
