// Logs in through the router, watches, writes and runs a transaction; prints what it saw as JSON.
const { MongoClient } = require("mongodb");

async function main([uri, database, name]) {
  const client = new MongoClient(uri);
  const collection = client.db(database).collection(name);
  const status = await client.db("admin").command({ connectionStatus: 1 });
  const stream = collection.watch([], { maxAwaitTimeMS: 1000 });
  // The first tryNext opens the stream, so that nothing written later is missed.
  await stream.tryNext();
  await collection.insertOne({ _id: 1 });
  await client.withSession((session) =>
    session.withTransaction(async () => {
      await collection.insertOne({ _id: 2 }, { session });
      await collection.insertOne({ _id: 99 }, { session });
    }),
  );
  const seen = [];
  while (seen.length < 3) seen.push((await stream.next()).documentKey._id);
  await stream.close();
  const refused = [];
  const attempts = [
    () => client.db("other").collection("c").insertOne({}),
    () => client.db("other").collection("c").watch().tryNext(),
    () => client.watch().tryNext(),
  ];
  for (const attempt of attempts) refused.push(await attempt().then(() => 0, (error) => error.code));
  await client.close();
  const user = status.authInfo.authenticatedUsers[0].user;
  console.log(JSON.stringify({ user, seen, refused }));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
