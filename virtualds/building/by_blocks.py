"""Building by blocks: whoever opens files combines them, and writes down what became too much.

A job on blocks goes where a job on files goes. Of each file it tells what became of it; the first
one that was opened brings along the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from virtualds.building.opening import Item, Job, Outcome
from virtualds.building.target import Target
from virtualds.building.tree import Block, Tree, UnlikeError

SIZE = 32
"""Files of a block that is combined in this process."""
SMALLEST = 8
"""Files of a block that is combined elsewhere: of one alone nobody knows along what it grows."""


class Share(NamedTuple):
    """What of a block a file brings along.

    The first file of a block ``leads``: it has the ``block``, unless the files are not alike or
    the block stayed with a worker. ``others`` are those that follow it.
    """

    leads: bool = False
    block: Block | None = None
    others: int = 0


@dataclass(frozen=True)
class BlockJob:
    """Opens files as another job does, and combines them.

    Parameters
    ----------
    job : Job
    tree : Tree
    target : Target, optional
        Where references go.
    joins : bool
        Whether blocks are joined by workers again.
    """

    job: Job[Any]
    tree: Tree
    target: Target | None = None
    joins: bool = False

    def __call__(self, items: Sequence[Item]) -> list[Outcome[Any]]:
        """Open some files, and combine them."""
        return self.combined(self.job(items))

    @property
    def smallest(self) -> int:
        """How many files it is worth giving to somebody else at least."""
        return SMALLEST

    def opened(self, item: Item) -> Outcome[Any]:
        """Open a file."""
        return self.job.opened(item)

    def prepared(self, item: Item, outcome: Outcome[Any]) -> Outcome[Any]:
        """Do what is to be done with an opened file."""
        return self.job.prepared(item, outcome)

    def gathered(self, outcomes: Iterator[Outcome[Any]]) -> Iterator[Outcome[Any]]:
        """Combine files that come one by one, in order."""
        while some := list(islice(outcomes, SIZE)):
            yield from self.combined(some)

    def combined(self, outcomes: Sequence[Outcome[Any]]) -> list[Outcome[Any]]:
        """Combine the files that were opened, and return what became of all of them."""
        found = [outcome.found for outcome in outcomes if outcome.found is not None]
        lead = Share(leads=True, others=len(found) - 1)
        if found:
            make = partial(self.tree.block, found)
            block = unless_unlike(make, self.tree, self.target, joins=self.joins)
            lead = lead._replace(block=block)
        shares = iter([lead, *(Share() for _ in found[1:])])
        return [o if o.found is None else replace(o, found=next(shares)) for o in outcomes]


def unless_unlike(
    make: Callable[[], Block], tree: Tree, target: Target | None, *, joins: bool
) -> Block | None:
    """Return a block, relieved of its references where they are many, or None if there is none.

    It is no error that datasets are to be combined at once, and no worker is to tell of one.
    """
    try:
        block = make()
    except UnlikeError:
        return None
    return _relieved(block, tree, target, joins=joins)


def _relieved(block: Block, tree: Tree, target: Target | None, *, joins: bool) -> Block:
    dim = block.place.dim if tree.is_ordered else tree.combination.concat_dim
    if target is None or dim is None:
        return block
    return replace(block, dataset=target.relieved(block.dataset, dim, joins=joins))


def joined(tree: Tree, shares: Sequence[Share]) -> Block:
    """Return the block of all files.

    Raises
    ------
    UnlikeError
        They are to be combined at once.
    """
    blocks = [share.block for share in shares if share.leads]
    whole = [block for block in blocks if block is not None]
    if len(whole) != len(blocks):
        raise UnlikeError("some of them are not alike")
    return tree.join(whole)
