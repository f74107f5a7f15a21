// Watches, writes and runs a transaction through the router; prints what it saw as JSON.
const { MongoClient } = require("mongodb");

async function main([uri, database, name]) {
  const client = new MongoClient(uri);
  await client.connect();
  const collection = client.db(database).collection(name);
  await client.db(database).createCollection(name);
  const stream = collection.watch([], { maxAwaitTimeMS: 1000 });
  await stream.tryNext();
  await collection.insertOne({ _id: "written" });
  await client.withSession((session) =>
    session.withTransaction(async () => {
      await collection.insertOne({ _id: "first" }, { session });
      await collection.insertOne({ _id: "second" }, { session });
    })
  );
  const seen = [];
  while (seen.length < 3) seen.push((await stream.next()).documentKey._id);
  await stream.close();
  await client.close();
  console.log(JSON.stringify(seen));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
