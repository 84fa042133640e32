"""The command line: one module a command, each with `run(arguments)`; `page` holds what their pages are made of."""
