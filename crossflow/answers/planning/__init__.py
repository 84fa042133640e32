"""Planning: the best strategies of a scenario, why others fail, and scenarios whose strategy is chosen when they are loaded."""
