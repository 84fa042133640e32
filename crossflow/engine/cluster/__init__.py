"""A cluster and its jobs: which job has devices when, by events (`events`) under a policy (`policies`), and what that takes (`account`)."""
