"""A second, naive simulator of a serving engine: one iteration at a time, every sum taken anew. For tests of `engine.service`."""

from math import ceil

import numpy as np

SHARE, LEAST, FALLS, CLIP, AFTER = 0.7, 0.098, (0.7 - 0.098) / 600, 4096, 20


class Item:
    def __init__(self, index, arrival, prompt, output, priority=0):
        self.index, self.arrival, self.prompt, self.output, self.priority = index, arrival, prompt, output, priority
        self.cached, self.need, self.wrote = 0, prompt, 0
        self.text, self.hashed, self.hits = (), 0, None  # hashes of all its blocks, and how many of them are asked for
        self.first = self.last = None
        self.evicted = self.away = 0

    @property
    def writes(self):
        return self.cached >= self.need

    @property
    def turn(self):
        return -self.priority, self.arrival, self.index


def give_up(idle, most, tiers, beyond):
    """Give the oldest idle blocks up until no more than `most` are left: to the first tier, and what that has no room for to the next."""
    while len(idle) > most:
        block = idle.pop(0)
        for tier, room in zip(tiers, beyond, strict=True):
            tier.append(block)
            if len(tier) <= room:
                break
            block = tier.pop(0)


class Naive:
    """`kind`: vllm, sglang or tensorrt-llm; `whole`: room for all that will be written; `ranked`: with priorities."""

    def __init__(
        self,
        table,
        kind,
        *,
        chunk,
        requests,
        pages,
        page,
        whole=False,
        ranked=False,
        block=1,
        beyond=(),
        fetch=(),
        pace=1.0,
        draw=None,
        adapters=None,
        slots=0,
        fetch_adapter=0.0,
        swap=None,
        swap_tokens=np.inf,
        ahead=False,
        order="arrival",
    ):
        self.order = order  # of those that wait, beside `ranked`
        self.ahead, self.ghosts = ahead, []  # whether steps are scheduled ahead, and items that have ended of which the schedule knows not
        self.pace, self.rounds = pace, 0  # tokens that a step gives a request in the mean, and steps that gave some
        self.draw = draw  # in the place of the mean, of a request in a step
        self.swap, self.swap_tokens, self.swaps, self.stall = swap, swap_tokens, 0, 0.0
        self.adapters, self.slots, self.fetch_adapter = adapters, slots, fetch_adapter  # adapter of each request, -1 of one without
        self.there, self.loads = [*range(slots)][::-1], 0  # adapters in memory, of idle ones the oldest first
        self.beyond, self.fetch, self.tiers = beyond, fetch, [[] for _ in beyond]
        self.aside, self.link, self.load = [], 0.0, 0.0  # items whose blocks come, with when; when the link is free; loads of the step
        self.block, self.idle = block, []  # pages of a hashed block, and those that nobody uses, the oldest first
        self.ranked = ranked
        self.table, self.kind, self.whole = table, kind, whole
        self.chunk, self.most, self.total, self.page = chunk, requests, pages, page
        self.waiting, self.running = [], []
        self.share, self.full, self.gaps, self.stamp = SHARE, False, [], {}

    def pages_of(self, item, tokens=None):
        if self.whole:
            tokens = item.prompt + item.output - 1
        return max(ceil((item.cached if tokens is None else tokens) / self.page) - item.hashed * self.block, 0)

    def held(self):
        return self.running + self.ghosts + [each for _, each in self.aside]

    def used(self):
        return {block for each in self.held() for block in each.text[: each.hashed]}

    def free(self):
        return self.total - sum(self.pages_of(each) for each in self.held()) - len(self.used()) * self.block

    def places(self, item):
        """Of each leading block that is there the time in which it comes."""
        near, found = self.used() | set(self.idle), []
        for block in item.text[: item.hashed]:
            times = [each * self.block for tier, each in zip(self.tiers, self.fetch, strict=True) if block in tier]
            if block not in near and not times:
                break
            found.append(0.0 if block in near else times[0])
        return found

    def worth(self, item):
        """The same, without what is read in less time than it takes to come."""
        found, size = self.places(item), self.block * self.page
        writers = sum(each.writes for each in self.running) if self.kind != "sglang" else 0
        while any(found):
            cut = found.index(max(found))
            tokens = (len(found) - cut) * size
            part = min(tokens, self.chunk)
            if sum(found[cut:]) <= self.table.more(writers, part, (cut + len(found)) / 2 * size) * tokens / part:
                break
            found = found[:cut]
        return found

    def found(self, item):
        return min(len(self.worth(item)) * self.block * self.page, item.need - 1)

    def leave(self, item, answer):
        """Blocks that it alone used lie idle; also those of its answer where these stay."""
        (self.running if item in self.running else self.ghosts).remove(item)
        if answer and item.text:
            item.hashed = max(item.hashed, (item.prompt + item.wrote - 1) // (self.block * self.page))
        mine = [block for block in item.text[: item.hashed] if block not in self.used()]
        self.idle = [block for block in self.idle if block not in mine] + mine[::-1]
        self.release(item)

    def in_use(self):
        return {self.adapters[each.index] for each in self.held()} - {-1}

    def lacks(self, item):
        return self.adapters and self.adapters[item.index] not in {-1, *self.in_use()} and len(self.in_use()) >= self.slots

    def use(self, item):
        adapter = self.adapters[item.index] if self.adapters else -1
        if adapter >= 0 and adapter not in self.there:
            self.there.remove(next(each for each in self.there if each not in self.in_use()))
            self.there.append(adapter)
            self.load, self.loads = self.load + self.fetch_adapter, self.loads + 1

    def release(self, item):
        adapter = self.adapters[item.index] if self.adapters else -1
        if adapter >= 0 and adapter not in self.in_use():
            self.there.remove(adapter)
            self.there.append(adapter)

    def evict(self, item):
        away = sum(each.away for each in self.waiting)
        swapped = item.cached if self.swap is not None and item.writes and away + item.cached <= self.swap_tokens else 0
        self.leave(item, item.writes and self.kind == "vllm" and not swapped)
        item.need, item.cached, item.away = item.prompt + item.wrote, 0, swapped
        if swapped:
            self.stall, self.swaps = self.stall + swapped * self.swap, self.swaps + 1
        item.evicted += 1
        self.waiting.insert(0, item) if self.kind != "sglang" else self.waiting.append(item)
        self.sort()
        self.full = False

    def come(self, item):
        self.waiting.append(item)
        self.sort()
        if self.ranked and self.waiting[0] is item:
            self.full = False

    def sort(self):
        if self.ranked:
            self.waiting.sort(key=lambda each: each.turn)

    def arrange(self):
        """Before prompts are admitted: the longest answer first, or the longest prefix in the cache, of 128 that wait at most."""
        if self.order == "output":
            self.waiting.sort(key=lambda each: -each.output)
        if self.order == "prefix" and len(self.waiting) <= 128:
            size, late, shown = self.block * self.page, [], []
            for each in self.waiting:
                times = [*self.places(each), 1.0]
                if next(i for i, time in enumerate(times) if time) * size <= 32:
                    text = each.text[: each.hashed]
                    shared = [sum(text[: i + 1] == other[: i + 1] for i in range(len(text))) for other in shown]
                    late += [each] if max(shared, default=0) * size >= 32 else []
                    shown += [] if each in late else [text]
            self.waiting.sort(key=lambda each: np.inf if each in late else -min(len(self.places(each)) * size, each.need - 1))

    def last(self):
        return max(self.running, key=lambda each: each.turn) if self.ranked else self.running[-1]

    def given(self):
        """Tokens that the next step gives each request: the mean number, in whole ones."""
        return int((self.rounds + 1) * self.pace + 1e-9) - int(self.rounds * self.pace + 1e-9)

    @property
    def part(self):
        return self.rounds * self.pace - int(self.rounds * self.pace + 1e-9)

    def growth(self, writers):
        return sum(self.pages_of(each, each.cached + self.given()) - self.pages_of(each) for each in writers)

    def make_room(self):
        """Evict until all that write have a page for their next token."""
        gone = False
        while True:
            writers = [each for each in self.running if each.writes]
            lacking = self.growth(writers) > self.free()
            if not lacking:
                return gone
            gone = True
            if self.kind == "sglang":
                self.evict(min(writers, key=lambda each: (each.wrote, -each.prompt)))
                left = [each for each in self.running if each.writes]
                most = sum(each.output for each in left)
                self.share = min((sum(each.wrote for each in left) + AFTER * len(left)) / most, 1.0) if most else SHARE
            else:
                self.evict(self.last())

    def has_room(self, item, piece, kept):
        free = self.free() - kept
        new = self.block * len(set(item.text[: item.hashed]) - self.used())
        if self.pages_of(item, item.need if self.kind == "vllm" and not self.whole else piece) + new > free:
            return False
        if self.kind != "sglang" or self.whole or not self.running:
            return True
        coming = sum(each.output - each.wrote for each in self.running if each.writes)
        return item.need - self.found(item) + min(item.output - item.wrote, CLIP) <= free * self.page - self.share * coming

    def beside(self, read):
        if self.kind == "sglang":
            return self.chunk - read, 0
        writers = [each for each in self.running if each.writes]
        return self.chunk - len(writers) - read, self.growth(writers)

    def chosen(self, crowded, now):
        """Pieces of prompts of the next step."""
        mixed = self.kind != "sglang"
        pieces, taken, passed = [], 0, []  # those that wait for a slot, and let others pass
        budget, kept = self.beside(0)
        for item in [each for each in self.running if not each.writes]:
            piece = min(item.need - item.cached, budget)
            if piece <= 0:
                break
            more = self.pages_of(item, item.cached + piece) - self.pages_of(item)
            while more > self.free() - self.beside(0)[1] - taken:
                self.evict(self.last() if self.ranked and mixed else item)
                crowded = True
                if item not in self.running:
                    return pieces
                budget, kept = self.beside(sum(tokens for _, tokens in pieces))
            taken += more
            pieces.append((item, piece))
            budget -= piece
        if not crowded and not self.full:
            self.free_of(taken)
            self.arrange()
        while self.waiting and budget > 0 and not crowded and not self.full:
            item = self.waiting[0]
            if self.lacks(item):
                passed.append(self.waiting.pop(0))
                continue
            if item.away:
                item.cached, item.need = item.away, item.away
                room, grown = self.has_room(item, item.away, kept + taken), self.pages_of(item, item.away + 1)
                item.cached = 0
                if len(self.held()) >= self.most or not room or grown > self.free() - kept - taken:
                    item.need, self.full = item.prompt + item.wrote, True
                    break
                self.running.append(self.waiting.pop(0))
                self.stall += item.away * self.swap
                item.cached, item.away = item.away, 0
                self.free_of(taken)
                budget, kept = self.beside(sum(tokens for _, tokens in pieces)) if mixed else (budget, kept)
                continue
            hits = self.found(item)
            piece = min(item.need - hits, budget)
            if self.kind == "tensorrt-llm" and piece < item.need - hits and not (item.evicted and budget == self.chunk):
                break
            if len(self.held()) >= self.most or not self.has_room(item, hits + piece, kept + taken):
                self.full = True
                break
            self.waiting.pop(0)
            self.use(item)
            away = sum(self.worth(item))
            if away and self.kind == "vllm":
                self.link = max(self.link, now) + away
                self.aside.append((self.link, item))
            else:
                self.load += away
                self.running.append(item)
            item.cached, item.hits = hits, hits if item.hits is None else item.hits
            more = self.pages_of(item, hits + piece) - self.pages_of(item)
            self.tiers = [[block for block in tier if block not in item.text[: item.hashed]] for tier in self.tiers]
            if away and self.kind == "vllm":
                item.ahead = more
                self.free_of(taken)
                continue
            taken += 0 if self.whole else more
            self.free_of(taken)
            pieces.append((item, piece))
            budget -= piece
        self.waiting = passed + self.waiting
        return pieces

    def free_of(self, taken):
        """Give idle blocks up for what the step takes."""
        self.idle = [block for block in self.idle if block not in self.used()]
        give_up(self.idle, (self.free() - taken) // self.block, self.tiers, self.beyond)

    def step(self, now):
        """One iteration; its end, or None where there is nothing to do."""
        if not self.running:
            self.let_go(list(self.ghosts))
        for ready, item in sorted(self.aside, key=lambda each: each[0]):
            if ready <= now:
                self.aside.remove((ready, item))
                self.running.append(item)
                item.ahead = 0
        mixed = self.kind != "sglang"
        crowded = mixed and self.make_room()
        pieces = self.chosen(crowded, now)
        if not pieces and self.running:
            self.make_room()
        writers = [each for each in self.running if each.writes] if mixed or not pieces else []
        if not pieces and not writers:
            self.share = SHARE
            return None
        vain = self.ghosts if writers else []
        rows = len(writers) + len(vain)
        cached = sum(each.cached for each in writers) + sum(each.prompt + each.output - 1 for each in vain)
        mean = cached / rows + self.part if writers else 0.0
        before, beside = self.table.before, self.table.beside
        time = self.table.line(rows, mean, alone=not any(before + beside))[0]
        if pieces:
            tokens = sum(piece for _, piece in pieces)
            keys = sum(piece * (item.cached + piece / 2) for item, piece in pieces) / tokens
            time += self.table.more(rows, tokens, keys)
        time = max(time, beside[0] + rows * beside[1]) + before[0] + rows * before[1]
        end = now + (max(time, self.load) if self.kind == "sglang" else time + self.load)
        end, self.load, self.stall = end + self.stall, 0.0, 0.0
        given = self.given()
        self.rounds += bool(writers)
        for item in writers:
            tokens = given if self.draw is None else self.draw()
            item.cached += tokens
            self.wrote(item, end, tokens)
        for item, piece in pieces:
            item.cached += piece
            if item.cached >= item.need:
                self.wrote(item, end)
        if writers:
            self.share = max(self.share - FALLS, LEAST)
        self.free_of(0)
        known = list(self.ghosts)
        gone = [each for each in self.running if each.last is not None]
        read = [item for item, _ in pieces]
        for item in sorted(gone, key=lambda each: (each in read, read.index(each) if each in read else self.running.index(each))):
            if self.ahead:
                self.running.remove(item)
                self.ghosts.append(item)
            else:
                known.append(item)
        self.let_go(known)
        return end

    def let_go(self, items):
        for item in items:
            self.leave(item, True)
        self.full = self.full and not items

    def wrote(self, item, now, tokens=1):
        item.wrote = min(item.wrote + tokens, item.output)
        if item.first is None:
            item.first = now
        if item.wrote >= item.output:
            item.last = now


def run(trace, engine):
    """All requests of a trace through one engine; the items, and how many iterations it took."""
    priority = [trace.classes[kind].priority for kind in trace.kind]
    items = [Item(i, *each) for i, each in enumerate(zip(trace.arrival, trace.prompt, trace.output, priority, strict=True))]
    if trace.blocks is not None:
        heirs = {int(trace.follows[i]): i for i in np.flatnonzero(trace.continues)[::-1]}
        for item in items:
            blocks = tuple(trace.blocks[item.index])
            item.hashed = item.prompt // trace.block
            after = tuple(trace.blocks[int(heirs[item.index])])[item.hashed :] if item.index in heirs else ()
            item.text = blocks[: item.hashed] + after + tuple((item.index, i) for i in range(item.output))
    come, now, turn, steps, begun = list(items), 0.0, 0, 0, None
    while turn < len(come) or engine.waiting or engine.running or engine.aside:
        known = begun if engine.ahead and engine.running and begun is not None else now
        while turn < len(come) and come[turn].arrival <= known:
            engine.come(come[turn])
            turn += 1
        end, begun = engine.step(now), now
        if end is None:
            begun = None
            now = min([come[turn].arrival] * (turn < len(come)) + [ready for ready, _ in engine.aside])
        else:
            now, steps = end, steps + 1
    return items, steps
