"""Launch files: the flags of training and serving frameworks, written from a plan and read back into one."""
