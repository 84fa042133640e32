"""Encoders of their own, which turn the images of requests into tokens before engines read their prompts [1]_.

A request with images waits for the first encoder that is free, in order of arrival; the encoder turns all of its images into tokens, which
then travel to the engine. That is a queue with several servers, of which no event but the end of each request has to be known.

References
----------
.. [1] Singh et al., "Efficiently Serving Large Multimodal Models Using EPD Disaggregation", ICML 2025.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Index


@dataclass(frozen=True, kw_only=True)
class EncoderTimes:
    """What encoders take.

    Attributes
    ----------
    count : encoders. [1]
    images : of a request, in the mean; the first n requests have floor(n images) together. [1]
    times : of an encoder for requests with 0, 1, 2, ... images. [s]
    sent : in which the tokens of as many images travel to an engine. [s]
    """

    count: int
    images: float
    times: tuple[float, ...]
    sent: tuple[float, ...]

    def of(self, index: int) -> int:
        """Images of a request. [1]

        >>> three = EncoderTimes(count=1, images=1.5, times=(0.0, 1.0, 2.0), sent=(0.0, 0.0, 0.0))
        >>> [three.of(i) for i in range(4)]
        [1, 2, 1, 2]
        """
        return math.floor((index + 1) * self.images) - math.floor(index * self.images)


class Encoders:
    """Encoders in a run."""

    def __init__(self, known: EncoderTimes) -> None:
        self.known = known
        self.free = list[float]()  # heap of when those that have had a request have nothing more to do. [s]
        self.arrivals: dict[int, float] = {}  # of requests that are here. [s]
        self.requests = [0] * len(known.times)  # that had so many images. [1]
        self.waited = 0.0  # of all requests, for an encoder. [s]

    def take(self, index: int, now: float) -> float:
        """Let a request come; when the tokens of its images are with an engine. [s]"""
        images = self.known.of(index)
        self.requests[images] += 1
        if not images:
            return now
        begin = self._begin(now)
        end = begin + self.known.times[images]
        heapq.heappush(self.free, end)
        self.waited += begin - now
        return end + self.known.sent[images]

    def _begin(self, now: float) -> float:
        """When the first encoder that is free begins; one that has had no request yet takes none of the heap. [s]"""
        if len(self.free) < self.known.count and not (self.free and self.free[0] <= now):
            return now
        return max(now, heapq.heappop(self.free))


def encoder_work(known: EncoderTimes, arrivals: Array) -> tuple[Array, Index]:
    """When encoders begin with each request, and the images that it has, in order of arrival, shapes (requests,). [s], [1]

    Parameters
    ----------
    arrivals : of requests by their number, shape (requests,). [s]
    """
    encoders = Encoders(known)
    order = np.argsort(arrivals, kind="stable")
    images = np.array([known.of(int(i)) for i in order], dtype=np.intp)
    away = np.array([encoders.take(int(i), float(arrivals[i])) for i in order])
    return away - np.array(known.sent)[images] - np.array(known.times)[images], images
