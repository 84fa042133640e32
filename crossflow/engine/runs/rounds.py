"""Rounds of a service in which prompts are read: how many of all, how many follow the end of a prompt, and who waits for them.

A round is a step of all microbatches of an engine. Prompts that arrive while one round runs are read in the next ones, so that rounds that
read come in busy periods. In a long round more arrive than in a short one: what an arrival finds is the mean over time, not over rounds.
Requests that come at random and are dealt to replicas in turn come to each of them more evenly: of k replicas one sees every k-th [4]_.

References
----------
.. [1] Takacs, "Introduction to the Theory of Queues", 1962, Ch. 3: busy periods of infinitely many servers with equal services.
.. [2] Kleinrock, "Queueing Systems", vol. 1, 1975, Sec. 3.5 (Erlang), 5.3 and 5.8: what departures leave behind, and busy periods.
.. [3] Ross, "Stochastic Processes", 1996, Sec. 3.4: alternating renewal processes.
.. [4] Tijms, "A First Course in Stochastic Models", 2003, Sec. 9.6: k servers with equal services take every k-th request each.
"""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array, divide
from crossflow.base.limits import LARGEST

# Prompts of a round beyond which all rounds read, and their share at least in which none reads. [1]
FEWEST, LEAST_IDLE = 30.0, 1e-6
WAITING = 48  # prompts that wait for a round at most while their number is sought. [1]
SERVERS = 32  # prompts that are read together at most while the queue for them is sought: nobody waits for the last of more. [1]


def erlang(servers: Array, load: Array) -> tuple[Array, Array]:
    """Share of the time in which nobody is at c servers, and of arrivals that wait for one (Erlang's C), M/M/c [2]_. [1], [1]

    Parameters
    ----------
    servers : c, whole, shape (n,). [1]
    load : servers that are busy in the mean, shape (n,); no more than all. [1]

    >>> [float(each) for each in erlang(np.array(1.0), np.array(0.25))]  # one server
    [0.75, 0.25]
    >>> [round(float(each), 4) for each in erlang(np.array(2.0), np.array(1.0))]
    [0.3333, 0.3333]
    """
    load = np.minimum(load, servers * (1.0 - LEAST_IDLE))
    many = np.minimum(servers, SERVERS)
    alone, load = np.exp(-np.minimum(load, FEWEST)), load * (many / servers)  # of more servers the same share is busy
    term, total = np.ones_like(load), np.zeros_like(load)
    for j in range(_whole(many)):
        total = np.where(j < many, total + term, total)
        term = np.where(j < many, term * load / (j + 1.0), term)
    all_busy = term / (1.0 - load / many)
    idle = np.where(servers > SERVERS, alone, 1.0 / (total + all_busy))
    return idle, np.asarray(all_busy / (total + all_busy))


def none_comes(arriving: Array, dealt: Array) -> Array:
    """Probability that none follows one in a time in which so many come in the mean, of every `dealt`-th of a Poisson process. [1]"""
    arriving = np.minimum(arriving, FEWEST)
    if np.all(dealt == 1.0):
        return np.exp(-arriving)
    from scipy.special import gammaincc

    return np.asarray(np.maximum(gammaincc(dealt, dealt * arriving), np.exp(-FEWEST)))


def some_come(arriving: Array, dealt: Array) -> Array:
    """Probability that any follow one in such a time, exact for rare ones too, of which that of none is 1 to the last digit. [1]"""
    if np.all(dealt == 1.0):
        return -np.expm1(-np.minimum(arriving, FEWEST))
    from scipy.special import gammainc

    return np.asarray(gammainc(dealt, dealt * np.minimum(arriving, FEWEST)))


def come_after(arriving: Array, dealt: Array) -> Array:
    """How many follow one in such a time, in the mean. [1]"""
    if np.all(dealt == 1.0):
        return arriving
    from scipy.special import gammainc

    most = _whole(np.ceil(arriving + 6.0 * np.sqrt(arriving) + 2.0), SERVERS)
    return np.asarray(sum(gammainc(j * dealt, dealt * arriving) for j in range(1, most + 1)))


def busy_rounds(arriving: Array, steps: Array, together: Array, dealt: Array) -> Array:
    """Rounds of a busy period: from the first that reads a prompt until one has none to read. [1]

    Prompts that come together are read together, each in s rounds. If any number could be, it would end when s rounds in a row have brought
    no other: (r^-s - 1) / (1 - r) with r = exp(-a) [1]_. If one alone is read, it takes s / (1 - a s) [2]_. Between, 1 / r^s is the
    inverse of the share of the time in which c servers have nothing to do (`erlang`). Of prompts that are dealt in turn, a period is s and
    the times between those that come within s of the one before: (1 - r_s) / r_s of them in the mean, with r_s that none does, each as long
    as such a time is in the mean [3]_. The end of each is put off to that of a round, as in the first formula.

    Parameters
    ----------
    arriving : a, prompts that arrive in a round that reads, in the mean, shape (n,). [1]
    steps : s. [1]
    together : c, prompts that are read together at most. [1]
    dealt : replicas to which prompts are dealt in turn. [1]

    >>> two = np.array(2.0)
    >>> [round(float(busy_rounds(np.array(a), two, np.array(c), two / two)), 3) for a, c in ((0.0, 9), (0.2, 32), (0.2, 2), (0.2, 1))]
    [2.0, 2.713, 2.758, 3.333]
    """
    idle, _ = erlang(together, arriving * steps)
    ends = none_comes(arriving * steps, dealt) * idle / np.exp(-np.minimum(arriving * steps, FEWEST))
    ends = np.maximum(ends, LEAST_IDLE)
    several = divide(1.0 / ends - 1.0, some_come(arriving, dealt))
    if np.any(dealt > 1.0):
        from scipy.special import gammainc

        put_off = divide(arriving, -np.expm1(-arriving))
        between = divide(gammainc(dealt + 1.0, dealt * arriving * steps), arriving * ends)
        several = np.where(dealt > 1.0, steps + put_off * between, several)
    alone = divide(steps, np.maximum(1.0 - arriving * steps, LEAST_IDLE))
    return np.asarray(np.where(arriving > 0, np.where(together > 1.0, np.maximum(several, steps), alone), steps))


def _whole(numbers: Array, most: float = LARGEST) -> int:
    """The largest of some whole numbers; of points without an end, which have none, nothing is asked."""
    return int(np.minimum(np.nan_to_num(numbers, nan=0.0).max(), most))


def until_next(arriving: Array, dealt: Array) -> Array:
    """Mean time to the next, where none has come for a time in which so many come in the mean, over the mean time between two. [1]"""
    if np.all(dealt == 1.0):
        return np.ones(1)
    from scipy.special import gammaincc

    arriving = np.minimum(arriving, FEWEST)
    none, fewer = none_comes(arriving, dealt), gammaincc(dealt + 1.0, dealt * arriving)
    return np.where(dealt > 1.0, np.maximum(divide(fewer, none) - arriving, LEAST_IDLE), 1.0)


def share_read(offered: Array, times: tuple[Array, Array], steps: Array, together: Array, dealt: Array) -> Array:
    """Share of rounds that read: B / (B + I) of busy periods B (`busy_rounds`) and idle ones I = 1 / (1 - w), with w the probability that
    a round that writes brings no prompt. Parameters as of `layers_read` and `busy_rounds`. [1]

    >>> one = np.ones(1)
    >>> round(float(share_read(0.5 * one, (one, one), one, 32 * one, one)[0]), 3)  # as long rounds as others: those that have brought one
    0.393
    """
    arriving = offered * times[1]
    begins = -np.expm1(-np.minimum(divide(offered * times[0], until_next(arriving * steps, dealt)), FEWEST))
    period = busy_rounds(arriving, steps, together, dealt) * begins
    return np.asarray(divide(period, period + 1.0))


def layers_read(
    offered: Array, steps: Array, stages: Array, room: Array, times: tuple[Array, Array], dealt: tuple[Array, Array] | None = None
) -> Array:
    """Pieces of prompts that the fullest microbatch of a round reads in the mean, shape (n,). [1]

    Prompts come at random, are dealt to the p microbatches of a round one after the other, and are read in as many rounds as they have
    pieces, s. A microbatch reads j + 1 pieces where more than j p prompts come together, a Poisson number. Microbatches read no less than
    what comes, a s / p. With one stage, pieces add up: a s.

    Parameters
    ----------
    offered : a, prompts that come in the mean round of p microbatches, shape (n,). [1]
    steps : s. [1]
    stages : p. [1]
    room : pieces that a microbatch has room for. [1]
    times : of a round that writes and of one that reads, over that of the mean round; both 1 where requests follow the end of others.
    dealt : prompts that are read together at most, p times the room where absent, and replicas to which they are dealt in turn. [1]

    >>> one = np.ones(1)
    >>> [round(float(layers_read(0.5 * one, one, p * one, one, (one, one))[0]), 3) for p in (1.0, 2.0)]
    [0.5, 0.4]
    """
    if np.all(stages == 1.0):
        return offered * steps
    together, replicas = (np.floor(stages) * room, np.ones(1)) if dealt is None else dealt
    share = share_read(offered, times, steps, together, replicas)
    layers = share + fuller(offered, stages, room, 1.0)
    chained = np.asarray((stages > 1.0) & (steps == 1.0) & (room >= 2.0) & (replicas == 1.0) & (offered > 0))
    if chained.any():
        layers, chained = (np.broadcast_to(one, np.broadcast_shapes(layers.shape, chained.shape)) for one in (layers, chained))
        some = (np.broadcast_to(one, layers.shape)[chained] for one in (offered * times[0], offered * times[1], stages, room))
        layers = layers.copy()
        layers[chained] = np.maximum(layers_of_chain(*some), np.broadcast_to(share, layers.shape)[chained])
    return np.asarray(np.where(stages == 1.0, offered * steps, np.maximum(layers, offered * steps / stages)))


def layers_of_chain(writing: Array, reading: Array, stages: Array, room: Array) -> Array:
    """Pieces of the fullest of p microbatches in the mean round, where each prompt is one piece and comes at random, shape (n,). [1]

    A round reads what has come by its begin, dealt to the microbatches in turn, and takes the longer the more pieces the fullest has: in a
    long one more come, which make the next one long. The prompts that wait at the begin of a round are a Markov chain, in balance here.

    Parameters
    ----------
    writing, reading : prompts that come in a round that only writes, and in one whose fullest microbatch reads one piece, in the mean. [1]
    stages, room : p, and pieces that a microbatch reads at most. [1]

    >>> half, one = np.array([0.5]), np.ones(1)
    >>> round(float(layers_of_chain(half, half, 9 * one, one)[0]), 3)  # equal rounds of one piece: those that have brought a prompt
    0.393
    """
    waits = np.arange(WAITING + 1.0)
    factorials = np.cumsum(np.log(np.maximum(waits, 1.0)))  # of numbers up to the most that wait, as logarithms
    read = np.minimum(waits, np.floor(stages * room)[:, None])
    layers = np.ceil(read / stages[:, None])
    comes = (writing[:, None] + layers * (reading - writing)[:, None])[..., None]
    more = waits - (waits - read)[..., None]  # that must come in a round so that so many wait behind it
    chance = np.where(more >= 0, np.exp(more * np.log(comes) - comes - factorials[np.maximum(more, 0.0).astype(int)]), 0.0)
    chance[..., -1] += 1.0 - chance.sum(axis=-1)
    balance = np.swapaxes(chance, -1, -2) - np.eye(WAITING + 1)
    balance[:, -1] = 1.0
    found = np.linalg.solve(balance, np.broadcast_to(np.eye(WAITING + 1)[-1][:, None], (len(writing), WAITING + 1, 1)))[..., 0]
    return np.asarray((found * layers).sum(axis=-1))


def fuller(prompts: Array, stages: Array, room: Array, first: float) -> Array:
    """Pieces beyond the first that one of p microbatches reads where so many prompts come, a Poisson number with this mean: one more for
    every p, from the one after `first`. [1]
    """
    most = _whole(np.minimum(room, np.ceil((prompts + 8.0 * np.sqrt(prompts) + 8.0) / stages)))
    more = np.zeros(1)
    if most > 1:
        from scipy.special import gammainc

        for j in range(1, most):
            more = more + np.where(room >= j + 1, gammainc(j * stages + first, prompts), 0.0)
    return more


def rounds_behind(rounds: Array, left: Array, first: Array, share: Array, mean: Array) -> Array:
    """Rounds that read among those in which a request is written, beyond their share of all rounds. [1]

    The first of them follows the end of its prompt, when a busy period still lasts for some rounds more often than at the begin of a
    round: departures leave behind what arrivals find, which is the mean over time [2]_. From there on busy and idle periods take turns,
    which leaves (1 - share) (B - share E) rounds more than their share [3]_, with B the rounds for which the busy period lasts in the
    mean, and E those for which it lasts at the begin of any round that reads. As B is E in the share of the time in which rounds read,
    that is (1 - share) (1 - mean) B. Few rounds end before that: the first of them reads with the probability `first`.

    Parameters
    ----------
    rounds : in which a request is written, shape (n,). [1]
    left : B. [1]
    first : probability that the round reads which follows the end of a prompt. [1]
    share : of rounds that read. [1]
    mean : time of the mean round, over that of one that reads. [1]
    """
    more = (1.0 - share) * np.maximum(1.0 - mean, 0.0) * left
    each = np.maximum(first - share, 0.0)
    return np.asarray(more * -np.expm1(-divide(rounds * each, np.where(more > 0, more, 1.0))))
