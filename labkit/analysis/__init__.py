"""What a run's rows mean: pure functions of plain rows."""
