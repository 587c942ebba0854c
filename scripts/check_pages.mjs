// check_pages.mjs FOLDER PAGE...: opens pages in a headless Chromium over the DevTools protocol's pipe, and runs the
// axe-core that is installed in FOLDER in each of their tabs. Exits with 1 if it finds anything serious.
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";

const [folder, ...files] = process.argv.slice(2);
const axe = readFileSync(`${folder}/node_modules/axe-core/axe.min.js`, "utf8");
const browser = spawn(
  "sh",
  [
    "-c",
    'exec "$0" --headless=new --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir="$1" 3<&0 4>&1 >/dev/null 2>&1',
    process.env.TINDERBOX_CHROMIUM ?? "chromium",
    `${folder}/profile`,
  ],
  { stdio: ["pipe", "pipe", "inherit"] },
);

const answers = new Map();
let session;
let loaded = () => {};
let received = "";
browser.stdout.on("data", (data) => {
  const messages = (received + data).split("\0");
  received = messages.pop();
  for (const message of messages.map((text) => JSON.parse(text))) {
    answers.get(message.id)?.(message);
    if (message.method === "Page.loadEventFired") {
      loaded();
    }
  }
});

function command(method, params = {}) {
  const id = answers.size + 1;
  const message = { id, method, params, ...(session && { sessionId: session }) };
  return new Promise((done) => {
    answers.set(id, ({ result, error }) => {
      if (error) {
        throw new Error(`${method}: ${error.message}`);
      }
      done(result);
    });
    browser.stdin.write(`${JSON.stringify(message)}\0`);
  });
}

async function evaluate(expression) {
  const { result, exceptionDetails } = await command("Runtime.evaluate", {
    expression,
    awaitPromise: true,
    returnByValue: true,
  });
  if (exceptionDetails) {
    throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  }
  return result.value;
}

// What axe finds in each tab, or in the page if it has none.
const LOOK = `(async () => {
  const found = [];
  const tabs = [...document.querySelectorAll("[role=tab]")];
  for (const tab of tabs.length > 0 ? tabs : [null]) {
    tab?.click();
    await new Promise((done) => setTimeout(done, 200));
    for (const { id, impact, nodes } of (await axe.run()).violations) {
      found.push({ tab: tab?.textContent ?? "page", id, impact, n: nodes.length, first: nodes[0].html.slice(0, 120) });
    }
  }
  return found;
})()`;

const { targetId } = await command("Target.createTarget", { url: "about:blank" });
session = (await command("Target.attachToTarget", { targetId, flatten: true })).sessionId;
await command("Page.enable");
let nSerious = 0;
for (const file of files) {
  for (const width of [1280, 400]) {
    for (const theme of ["light", "dark"]) {
      await command("Emulation.setDeviceMetricsOverride", { width, height: 900, deviceScaleFactor: 1, mobile: false });
      await command("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: theme }] });
      const isLoaded = new Promise((done) => (loaded = done));
      await command("Page.navigate", { url: `file://${resolve(file)}` });
      await isLoaded;
      await evaluate(axe);
      for (const { tab, id, impact, n, first } of await evaluate(LOOK)) {
        console.log(`${file}, ${width} pixels, ${theme}, ${tab}: ${impact}: ${id}, ${n} times, first ${first}`);
        nSerious += ["serious", "critical"].includes(impact) ? 1 : 0;
      }
    }
  }
}
console.log(`${files.length} pages, ${nSerious} serious findings`);
browser.kill();
process.exit(nSerious > 0 ? 1 : 0);
