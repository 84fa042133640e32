"""Which rank holds which embedding table, or part of one."""
