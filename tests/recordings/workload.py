"""The operations recorded in workload.bson.gz, which were run through mongos with PyMongo.

``rnd`` was random.Random(1). Tests run them on the embedded cluster to compare its events with the
recorded ones. STREAMS has the recorded change streams: name -> (database, aggregate target,
$changeStream options, further stages).
"""

import bson


def setup(m, shard_ids):
    """Create and shard the collections; ``shard_ids`` are the first three shards, in order."""
    m.admin.command("enableSharding", "rec", primaryShard=shard_ids[0])
    m.admin.command("shardCollection", "rec.orders", key={"region": 1, "_id": 1})
    for i, at in enumerate(["h", "p"][: len(shard_ids) - 1]):
        m.admin.command("split", "rec.orders", middle={"region": at, "_id": bson.MinKey()})
        m.admin.command(
            "moveChunk", "rec.orders", find={"region": at + "z", "_id": 1}, to=shard_ids[i + 1]
        )
    m.rec.create_collection("flat")
    m.rec.create_collection("img", changeStreamPreAndPostImages={"enabled": True})


def workload(m, shard_ids, cluster, rnd):
    """Run the operations; a fourth shard of ``cluster`` is started and added meanwhile."""
    o = m.rec.orders
    regions = [r + str(rnd.randrange(9)) for r in "abcdefghijklmnopqrstuvwxyz"]
    ids = []
    for i in range(240):
        r = rnd.choice(regions)
        o.insert_one(
            {
                "_id": i,
                "region": r,
                "n": i,
                "tags": list(range(rnd.randrange(6))),
                "nested": {"a": i, "b": [1, 2, 3]},
            }
        )
        ids.append((i, r))
    o.insert_many(
        [{"_id": 1000 + i, "region": rnd.choice(regions), "n": i} for i in range(150)],
        ordered=False,
    )
    for i, r in rnd.sample(ids, 60):
        k = rnd.randrange(7)
        if k == 0:
            o.update_one({"_id": i, "region": r}, {"$set": {"n": -i, "nested.a": "x"}})
        elif k == 1:
            o.update_one({"_id": i, "region": r}, {"$unset": {"nested.b": 1}, "$inc": {"n": 5}})
        elif k == 2:
            o.update_one({"_id": i, "region": r}, [{"$set": {"tags": {"$slice": ["$tags", 1]}}}])
        elif k == 3:
            o.replace_one({"_id": i, "region": r}, {"region": r, "replaced": True, "n": i})
        elif k == 4:
            o.delete_one({"_id": i, "region": r})
        elif k == 5:
            o.update_one({"_id": i, "region": r}, {"$push": {"tags": {"$each": [7, 8]}}})
        else:
            o.update_one({"_id": 5000 + i, "region": r}, {"$set": {"up": 1}}, upsert=True)
    flat = m.rec.flat
    flat.insert_many([{"_id": k, "v": k} for k in range(20)])
    for k in range(10):
        flat.update_one({"_id": k}, {"$set": {"v": k * 2, "a.b": 1}})
    flat.update_many({}, {"$inc": {"v": 1}})
    flat.delete_many({"_id": {"$gte": 15}})
    img = m.rec.img
    img.insert_many([{"_id": k, "v": k, "s": "y" * 50} for k in range(6)])
    img.update_one({"_id": 1}, {"$set": {"v": 11}})
    img.replace_one({"_id": 2}, {"w": 1})
    img.delete_one({"_id": 3})
    # a transaction over several shards, with several documents on each
    with m.start_session() as s:
        with s.start_transaction():
            for k, r in enumerate(["a1", "j1", "z1", "a2", "j2", "z2"]):
                o.insert_one({"_id": 9000 + k, "region": r, "txn": 1}, session=s)
            o.update_one({"_id": 9000, "region": "a1"}, {"$set": {"txn": 2}}, session=s)
            flat.insert_one({"_id": 900}, session=s)
        with s.start_transaction():
            for k in range(3):
                flat.insert_one({"_id": 950 + k, "txn": 3}, session=s)
        with s.start_transaction():  # aborted: no events
            flat.insert_one({"_id": 990}, session=s)
            s.abort_transaction()
    # shard key change moves a document between shards
    with m.start_session() as s:
        o.update_one({"_id": 9000, "region": "a1"}, {"$set": {"region": "zz"}}, session=s)
    # chunk migration in the middle of writes: no events of its own
    m.admin.command("moveChunk", "rec.orders", find={"region": "a", "_id": 1}, to=shard_ids[1])
    for k in range(40):
        o.insert_one({"_id": 7000 + k, "region": rnd.choice(regions), "after": "move"})
    # a new shard, then data on it
    sid, host = cluster.start_shard()
    cluster.shards[sid] = host
    m.admin.command("addShard", host, name=sid)
    m.admin.command("moveChunk", "rec.orders", find={"region": "zz", "_id": 1}, to=sid)
    for k in range(40):
        o.insert_one({"_id": 8000 + k, "region": rnd.choice(regions), "after": "addShard"})
    # DDL
    m.rec.create_collection("ddl", capped=False)
    m.rec.ddl.create_index([("x", 1)], name="x1")
    m.rec.ddl.insert_one({"_id": 1, "x": 1})
    m.rec.ddl.drop_index("x1")
    m.rec.command("collMod", "ddl", validator={"x": {"$exists": True}})
    m.rec.ddl.rename("renamed")
    m.rec.renamed.insert_one({"_id": 2, "x": 2})
    m.rec.renamed.drop()
    m.other.things.insert_many([{"_id": k} for k in range(5)])
    m.rec.create_collection("v", viewOn="flat", pipeline=[])
    # a large event that needs splitting
    big = m.rec.create_collection("big", changeStreamPreAndPostImages={"enabled": True})
    big.insert_one({"_id": 1, "p": "a" * (9 << 20)})
    big.update_one({"_id": 1}, {"$set": {"p": "b" * (9 << 20)}})
    o.drop()
    m.rec.flat.insert_one({"_id": "after drop"})
    m.rec.orders.insert_one({"_id": "recreated"})
    m.drop_database("other")
    m.rec.flat.insert_one({"_id": "last"})


STREAMS = {
    "cluster": ("admin", 1, {"allChangesForCluster": True}, []),
    "cluster-expanded": (
        "admin",
        1,
        {"allChangesForCluster": True, "showExpandedEvents": True},
        [],
    ),
    "db": ("rec", 1, {}, []),
    "db-other": ("other", 1, {}, []),
    "coll-orders": ("rec", "orders", {}, []),
    "coll-orders-lookup": ("rec", "orders", {"fullDocument": "updateLookup"}, []),
    "coll-flat": ("rec", "flat", {}, []),
    "coll-img": (
        "rec",
        "img",
        {"fullDocument": "whenAvailable", "fullDocumentBeforeChange": "whenAvailable"},
        [],
    ),
    "coll-img-required": (
        "rec",
        "img",
        {"fullDocument": "required", "fullDocumentBeforeChange": "required"},
        [],
    ),
    "db-match": (
        "rec",
        1,
        {},
        [{"$match": {"operationType": {"$in": ["insert", "delete"]}, "ns.coll": "orders"}}],
    ),
    "db-project": ("rec", 1, {}, [{"$project": {"operationType": 1, "documentKey": 1}}]),
    "coll-big-split": (
        "rec",
        "big",
        {"fullDocument": "required", "fullDocumentBeforeChange": "required"},
        [{"$changeStreamSplitLargeEvent": {}}],
    ),
    "coll-big": (
        "rec",
        "big",
        {"fullDocument": "required", "fullDocumentBeforeChange": "required"},
        [],
    ),
    "bad-id": ("rec", "flat", {}, [{"$project": {"_id": 0}}]),
}
