// Ask the site's own search: `node search.js WORKER INDEX` reads questions from standard input, as JSON,
// and writes the pages that it finds for each. The worker is what a browser runs.
const fs = require("fs"), path = require("path"), vm = require("vm");

const [worker, index] = process.argv.slice(2);
const waiting = [];
let listen;
globalThis.self = globalThis;
globalThis.addEventListener = (kind, handler) => { listen = handler; };
globalThis.postMessage = message => waiting.shift()(message);
globalThis.importScripts = (...scripts) => scripts.forEach(run);

function run(script) {
  const file = path.resolve(path.dirname(worker), script);
  vm.runInThisContext(fs.readFileSync(file, "utf8"), file);
}

function ask(type, data) {
  return new Promise((resolve, reject) => {
    waiting.push(resolve);
    Promise.resolve(listen({ data: { type, data } })).catch(reject);
  });
}

async function main() {
  run(path.resolve(worker));
  const { config, docs } = JSON.parse(fs.readFileSync(index, "utf8"));
  await ask(0, { config, docs, options: { suggest: true } });
  const found = {};
  for (const question of JSON.parse(fs.readFileSync(0, "utf8"))) {
    const { items } = (await ask(2, question)).data;
    // As the page does: {items} may be a map of pages to their hits, or a list of those.
    found[question] = [...(items.values ? items.values() : items)].map(
      hits => hits[0].location.split("#")[0]);
  }
  console.log(JSON.stringify(found));
}

main().catch(error => { console.error(error); process.exit(1); });
