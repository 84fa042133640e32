"""The explorer: local pages on which a scenario or a study answers at once. The model is Python's; pages only draw."""
