"""The language of strategies: how a workload is divided over devices, in every notation."""
