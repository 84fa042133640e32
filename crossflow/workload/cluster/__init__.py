"""Jobs of a cluster: its file (`spec`), traces of real clusters (`formats`, `reading`), and jobs that are drawn (`draws`)."""
