// Watch a collection with the Node.js driver.
//
// Usage: node watch_node.js [URI]
const { MongoClient } = require("mongodb");

async function main(uri = "mongodb://127.0.0.1:27020") {
  const client = await new MongoClient(uri).connect();
  const changes = client.db("shop").collection("orders").watch();
  // The first tryNext opens the stream, which delivers every write from then on.
  await changes.tryNext();
  console.log("watching");
  for await (const change of changes) {
    console.log(change.operationType, change.documentKey?._id);
  }
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
