import asyncio, sys, random
import tests.soak as S
from tests.harness.clusters import start_cluster
from tests.harness.routers import start_router
which=sys.argv[1:]
S._BEHAVIOURS=tuple(b for b in S._BEHAVIOURS if b.__name__ in which) if which!=["all"] else S._BEHAVIOURS
with start_cluster(2) as c, start_router(c.configdb, c.mongos_uri, feed=True, set_parameter={"cursorTimeoutMillis":2000}) as r:
    s=S.Soak(c,r)
    asyncio.run(s.round(200))
    out=[]
    for i in range(5):
        asyncio.run(s.round(1000, seed=i))
        out.append(round(s.resident_kib/1024,1))
    print(which, out)
    s.close()
