"""Jobs of a cluster: the file that says them (`spec`), traces of real clusters (`formats`, `reading`), and jobs that are drawn (`draws`)."""
