"""Bytes of deleted rows out of Elasticsearch's files.

A deleted row stays in its segment until a merge, and a merge keeps it for as long as a copy of the shard may ask for its history: until the
leases of all copies have passed it. The nodes tell each other every half minute how far these are, and nothing makes them do it sooner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from pipeline.errors import Unavailable
from pipeline.stores.elasticsearch_client import Client

LATER_S = 30.0
_SHARDS = {"level": "shards", "filter_path": "indices.*.shards.seq_no,indices.*.shards.*.seq_no,indices.*.shards.*.retention_leases.leases"}


def expunge(client: Client, indices: str) -> None:
    """Merge away what was deleted until now in every segment that holds any of it, and empty the transaction logs.

    Raises NotFound; Unavailable while a copy of a shard may still ask for what was deleted: then nothing was done, and half a minute later it
    may be. While others go on deleting, what they delete meanwhile may hold it up for as long.
    """
    # By default a segment is left alone while a tenth of it is deleted.
    client.call("PUT", f"/{indices}/_settings", {"index.merge.policy.expunge_deletes_allowed": 0})
    if any(kept(shard) for shard in _copies(client, indices)):
        raise Unavailable(
            "Elasticsearch keeps the bytes of deleted rows until all copies of their shards have them behind them", after=LATER_S, code="bytes_kept"
        )
    # History begins with the last commit, so that it has to be behind what was deleted as well.
    client.call("POST", f"/{indices}/_flush", params={"force": "true", "wait_if_ongoing": "true"})
    client.call("POST", f"/{indices}/_forcemerge", params={"only_expunge_deletes": "true", "flush": "true"})


def kept(copy: Mapping[str, Any]) -> bool:
    """Whether this copy keeps anything that was written or deleted until now."""
    leases = cast("list[Mapping[str, int]]", copy.get("retention_leases", {}).get("leases", []))
    return min((lease["retaining_seq_no"] for lease in leases), default=copy["seq_no"]["max_seq_no"] + 1) <= copy["seq_no"]["max_seq_no"]


def _copies(client: Client, indices: str) -> Iterator[Mapping[str, Any]]:
    answer = cast("Mapping[str, Any]", client.call("GET", f"/{indices}/_stats", params=_SHARDS))
    for found in cast("Mapping[str, Any]", answer.get("indices", {})).values():
        for copies in found["shards"].values():
            yield from copies
