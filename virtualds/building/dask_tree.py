"""Blocks on a dask cluster: workers open files, keep what they combine, and join it as a tree."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from virtualds.building.by_blocks import Share, unless_unlike
from virtualds.building.dask_jobs import shares_of
from virtualds.building.opening import Item, Outcome, Work
from virtualds.building.target import Target
from virtualds.building.tree import Block, Tree, UnlikeError
from virtualds.errors import ReadError

PIECES = 4
"""Blocks that every thread of the cluster gets at least."""
LARGEST = 64
"""Files of a block."""
WIDTH = 32
"""Blocks that are joined at a time."""


class ClusterBlocks:
    """Opens files on the workers of a cluster, and leaves the blocks that become of them there.

    Parameters
    ----------
    client : distributed.Client
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._leaves: dict[int, Any] = {}

    def __call__(self, job: Work, items: Sequence[Item]) -> Generator[Outcome[Any], None, None]:
        """Open files, and yield what becomes of each, without the blocks."""
        from distributed import as_completed

        shares = shares_of(self._client, items, LARGEST, PIECES)
        # the same files may have changed since they were opened by an equal task
        leaves = self._client.map(job, shares, pure=False, key="virtualds-block")
        told = self._client.map(_without_blocks, leaves, pure=False, key="virtualds-told")
        leaf_of = dict(zip(told, leaves, strict=True))
        try:
            for future in as_completed(told):  # type: ignore[no-untyped-call]
                for outcome in future.result():
                    if outcome.found is not None and outcome.found.leads:
                        self._leaves[outcome.number] = leaf_of[future]
                    yield outcome
        except BaseException:
            self._client.cancel([*leaves, *told])
            raise

    def joined(self, tree: Tree, target: Target | None, found: Mapping[int, Share]) -> Block:
        """Return the block of all files, which workers join block by block.

        Parameters
        ----------
        tree : Tree
        target : Target, optional
            Where references go.
        found : mapping of int to Share
            Of the files that were opened, by their numbers.

        Raises
        ------
        UnlikeError
            They are to be combined at once.
        ReadError
            A worker was lost, and its files could not be opened again.
        """
        leads = sorted(number for number, share in found.items() if share.leads)
        submit = self._client.submit
        nodes = [submit(_block_of, self._leaves[n], found[n].others, pure=False) for n in leads]
        # what is joined need not be kept by the workers
        self._leaves.clear()
        try:
            nodes = self._next(tree, target, nodes)
            while len(nodes) > 1:
                nodes = self._next(tree, target, nodes)
            whole: Block | None = nodes[0].result()
        except BaseException:
            self._client.cancel(nodes)
            raise
        if whole is None:
            raise UnlikeError("some of the files are not alike")
        return whole

    def _next(self, tree: Tree, target: Target | None, nodes: list[Any]) -> list[Any]:
        """Return the level of the tree above one."""
        groups = [nodes[start : start + WIDTH] for start in range(0, len(nodes), WIDTH)]
        return [self._client.submit(_joined, tree, target, some, pure=False) for some in groups]


def _without_blocks(outcomes: Sequence[Outcome[Any]]) -> list[Outcome[Any]]:
    return [
        outcome
        if outcome.found is None
        else replace(outcome, found=outcome.found._replace(block=None))
        for outcome in outcomes
    ]


def _block_of(outcomes: Sequence[Outcome[Any]], others: int) -> Block | None:
    """Return the block of some files, if it is of as many as the builder was told."""
    for outcome in outcomes:
        if outcome.found is not None and outcome.found.leads:
            if outcome.found.others != others:
                break
            block: Block | None = outcome.found.block
            return block
    raise ReadError(
        f"{len(outcomes)} files from number {outcomes[0].number} on: {others + 1} of them were "
        f"opened, but not when a worker was lost and they had to be opened again; build it again"
    )


def _joined(tree: Tree, target: Target | None, blocks: Sequence[Block | None]) -> Block | None:
    """Return the block of some blocks, None if their files are to be combined at once."""
    whole = [block for block in blocks if block is not None]
    if len(whole) != len(blocks):
        return None
    return unless_unlike(partial(tree.join, whole), tree, target, joins=True)
