"""What is written while a job is killed."""

import random
import threading
from collections import Counter

from bson import Decimal128, Int64
from pymongo.errors import PyMongoError

from tests.spark.conftest import Shop
from tests.spark.field_names import write_by_chance
from tests.spark.kills.job_process import JobProcess
from tests.spark.tables import change

_WRITES = 100  # from one batch to the next


class Writer(threading.Thread):
    """Writes at random, through a mongos, until `stop` is called.

    It pauses after some writes until the job has committed a batch, however slow the machine is:
    otherwise the job would be behind by hours in the end.
    """

    def __init__(self, shop: Shop, job: JobProcess, seed: int) -> None:
        super().__init__(daemon=True)
        self._shop = shop
        self._job = job
        self._chance = random.Random(f"{seed} writes")
        self.writes = 0
        self.refused: Counter[str] = Counter()
        """Errors, which change nothing."""
        self._ending = threading.Event()

    def run(self) -> None:
        """Write documents of both collections."""
        shop, chance = self._shop, self._chance
        batch, left = self._job.committed, _WRITES
        while not self._ending.wait(chance.uniform(0, 0.02)):
            if not left:
                if self._job.committed == batch:
                    continue
                batch, left = self._job.committed, _WRITES
            left -= 1
            try:
                if chance.random() < 0.2:
                    shop.insert(chance.randrange(1, 8))
                elif chance.random() < 0.2:
                    self._change_item(chance.randrange(50))
                elif chance.random() < 0.1:
                    self._move(chance.randrange(shop.written))
                else:
                    number = chance.randrange(shop.written)
                    change(shop, {"_id": number, "customer": number % 10}, chance)
                self.writes += 1
            except PyMongoError as error:
                self.refused[type(error).__name__] += 1

    def _change_item(self, number: int) -> None:
        """Change a document of a collection without shards, whose fields may have any names."""
        name = self._chance.choice(("items", "others"))
        collection, chosen = self._shop.client[self._shop.database][name], {"_id": number}
        kind = self._chance.random()
        if kind < 0.4:
            write_by_chance(collection, 100 + number, self._chance)
        elif kind < 0.6:
            collection.update_one(chosen, {"$inc": {"n": 1}}, upsert=True)
        else:  # the same number of another type
            replaced = self._chance.choice((int, Int64, float, lambda n: Decimal128(str(n))))
            collection.replace_one(chosen, {"_id": replaced(number), "a.b": 1, "n": 0})

    def _move(self, number: int) -> None:
        """Give a document another shard, and move it back, by its shard key."""
        orders = self._shop.client[self._shop.database].orders
        here, there = number % 10, (number + 5) % 10
        for before, after in ((here, there), (there, here)):
            chosen = {"_id": number, "customer": before}
            orders.update_one(chosen, {"$set": {"customer": after}})

    def stop(self) -> None:
        """End after the current write."""
        self._ending.set()
        self.join(60)
        assert not self.is_alive(), "the writer hangs"
