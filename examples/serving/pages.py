"""The pool of KV pages: reference counts, and full pages found again by the hash of all tokens up to their end.

A page that no request uses keeps its contents, if they are known by a hash, until it is the longest unused one and a page is needed.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence


def page_hashes(tokens: Sequence[int], page_size: int, known: Sequence[bytes] = ()) -> list[bytes]:
    """A hash for each full page of `tokens`, of its tokens and all before; `known` are the first ones, worked out earlier."""
    hashes = list(known)
    for start in range(len(hashes) * page_size, len(tokens) // page_size * page_size, page_size):
        block = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + page_size])
        hashes.append(hashlib.blake2b((hashes[-1] if hashes else b"") + block, digest_size=16).digest())
    return hashes


class PagePool:
    """Pages 0 .. num_pages - 1, each in use (references > 0), cached (none, contents known) or free."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self.references = [0] * num_pages
        self._free = list(reversed(range(num_pages)))
        self._unused: OrderedDict[int, None] = OrderedDict()  # cached, longest unused first
        self._hash_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self._unused)

    @property
    def num_cached(self) -> int:
        return len(self._unused)

    def is_cached(self, page: int) -> bool:
        return page in self._unused

    def allocate(self) -> int | None:
        """A page for new contents; None where all are in use."""
        if self._free:
            page = self._free.pop()
        elif self._unused:
            page, _ = self._unused.popitem(last=False)
            del self._page_of[self._hash_of.pop(page)]
        else:
            return None
        self.references[page] = 1
        return page

    def share(self, hash_: bytes) -> int | None:
        """The page of these contents, with one more reference."""
        page = self._page_of.get(hash_)
        if page is not None:
            self._unused.pop(page, None)
            self.references[page] += 1
        return page

    def publish(self, page: int, hash_: bytes) -> None:
        """Lets others find a full page that has been computed. Of two with equal contents the first stays known."""
        if hash_ not in self._page_of and page not in self._hash_of:
            self._page_of[hash_] = page
            self._hash_of[page] = hash_

    def release(self, pages: Sequence[int]) -> None:
        """One reference less; the last pages are given up first when pages are needed, since no prefix goes without its beginning."""
        for page in reversed(pages):
            self.references[page] -= 1
            if self.references[page] == 0:
                if page in self._hash_of:
                    self._unused[page] = None
                else:
                    self._free.append(page)
