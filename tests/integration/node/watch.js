// Watches and writes through the router with Node's driver; prints what it saw as JSON.
const { MongoClient } = require("mongodb");

async function main([uri, database, name]) {
  let helloStreamed = false;
  const client = new MongoClient(uri, { heartbeatFrequencyMS: 500, monitorCommands: true });
  const streamed = new Promise((resolve) => {
    client.on("serverHeartbeatSucceeded", (event) => {
      if (event.awaited) {
        helloStreamed = true;
        resolve();
      }
    });
  });
  await client.connect();
  const collection = client.db(database).collection(name);
  const inserted = [];
  const resumed = [];
  const stream = collection.watch([], { maxAwaitTimeMS: 1000 });
  // The first tryNext opens the stream, so that nothing written later is missed.
  await stream.tryNext();
  const documents = [];
  for (let key = 0; key < 100; key += 5) documents.push({ _id: key });
  await collection.insertMany(documents);
  let token = null;
  while (inserted.length < documents.length) {
    const event = await stream.next();
    token ??= event._id;
    inserted.push(event.documentKey._id);
  }
  await stream.close();
  const again = collection.watch([], { resumeAfter: token, maxAwaitTimeMS: 1000 });
  while (resumed.length < documents.length - 1) {
    resumed.push((await again.next()).documentKey._id);
  }
  await again.close();
  await streamed;
  await client.close();
  console.log(JSON.stringify({ inserted, resumed, helloStreamed }));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
