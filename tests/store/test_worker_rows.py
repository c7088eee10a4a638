"""Worker rows between versions: an unknown field is left out when written, and skipped when read."""

from __future__ import annotations

import msgspec

from locktender.base.model import WorkerRow
from locktender.store.decode import encode, known_worker

ROW = WorkerRow(
    id="w", host="h", pid=1, version="0", permits={"async": 1}, total=-1, claim=1, leaves=((7, 9),)
)


def test_what_a_worker_leaves_behind_comes_back_as_it_was():
    assert known_worker(encode(ROW)).leaves == ((7, 9),)


def test_a_row_of_an_older_worker_leaves_nothing_behind():
    fields = msgspec.json.decode(encode(ROW))
    del fields["leaves"]

    assert known_worker(encode(fields)) == msgspec.structs.replace(ROW, leaves=())


def test_a_row_of_a_newer_worker_is_read_as_far_as_it_is_known():
    fields = msgspec.json.decode(encode(ROW)) | {"of_tomorrow": [1]}

    assert known_worker(encode(fields)) == ROW
