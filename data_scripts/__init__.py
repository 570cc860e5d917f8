"""Scripts that make, fetch and arrange the data that the lab measures with."""
