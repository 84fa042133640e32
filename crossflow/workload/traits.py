"""What every workload answers about itself, so that who evaluates, searches or shows one need not ask of which kind it is."""

from __future__ import annotations

from typing import ClassVar

from crossflow.base.files import FileModel
from crossflow.workload.serving_spec import ServingSpec

NO_SERVICE = ServingSpec()


class WorkloadSpec(FileModel):
    """Base of the file models of workloads."""

    divisible: ClassVar[bool] = True  # whether a strategy divides it; a program says by itself how it lies on its devices
    layered: ClassVar[bool] = False  # whether it is a model of layers, whose strategies may differ inside a batch of design points

    @property
    def serves(self) -> bool:
        """Whether the task is one of a service, which keeps keys and values."""
        return False

    @property
    def is_service(self) -> bool:
        """Whether it is a whole service, which reads prompts and writes tokens."""
        return False

    @property
    def decodes(self) -> bool:
        """Whether its step writes tokens one by one."""
        return False

    @property
    def arrives(self) -> bool:
        """Whether requests arrive at a rate; else `global_batch` of them are in flight."""
        return False

    @property
    def service(self) -> ServingSpec:
        """How it runs as a service; without any part of one where it is none."""
        return NO_SERVICE

    @property
    def trains_transformer(self) -> bool:
        """Whether it trains a transformer, whose state is saved, and whose stages may lie on several kinds of devices."""
        return False

    @property
    def in_tokens(self) -> bool:
        """Whether its samples are sequences of tokens."""
        return False
