"""What is at hand by name, and everything that there is to show of one name."""
