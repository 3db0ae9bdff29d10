# SPDX-License-Identifier: Apache-2.0
"""The smallest connector: one option, a schema, a generator. Run it: ``python examples/countdown.py``."""

import pyarrow as pa

import forebay


class Countdown(forebay.SimpleSource):
    start: int = 10

    def schema(self) -> pa.Schema:
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        for i in range(split.position or 0, self.start):
            yield {"n": self.start - i}


if __name__ == "__main__":
    print(forebay.peek(Countdown(start=5)))
