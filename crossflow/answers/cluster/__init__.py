"""A cluster and its jobs: what each job is, predicted or given (`kinds`, `opening`), and what the cluster says (`schedule`)."""
