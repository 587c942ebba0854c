// time_pages.mjs PAGE...: see time_pages.sh, which fetches what this imports.
import { execFileSync } from "node:child_process";
import { statSync } from "node:fs";
import { basename, resolve } from "node:path";
import puppeteer from "puppeteer-core";

const program = process.env.TINDERBOX_CHROMIUM ?? "chromium";
const executablePath = execFileSync("sh", ["-c", 'command -v "$0"', program], { encoding: "utf8" }).trim();
const OPENINGS = 5;
const INPUTS = 40;

const median = (times) => times.toSorted((a, b) => a - b)[Math.floor(times.length / 2)];
const launch = () => puppeteer.launch({ executablePath, headless: true, args: ["--no-sandbox", "--disable-gpu"] });

/** Opens a page, and returns it and the milliseconds until it is drawn and answers. */
async function open(browser, file) {
  const page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 900 });
  await page.goto(`file://${resolve(file)}`);
  const time = await page.evaluate(
    () => new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now())))),
  );
  return [page, time];
}

/** The milliseconds from each event of a kind to the end of the frame that shows its effect. */
async function answers(page, kind, act) {
  await page.evaluate((kind) => {
    window.times = [];
    window.listener = (event) => {
      const start = event.timeStamp;
      requestAnimationFrame(() => {
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = () => times.push(performance.now() - start); // after style, layout and paint
        port2.postMessage(0);
      });
    };
    addEventListener(kind, listener, { capture: true });
  }, kind);
  for (let at = 0; at < INPUTS; at += 1) {
    await act(at);
    await page.evaluate(() => new Promise((done) => setTimeout(done, 60)));
  }
  return page.evaluate((kind) => {
    removeEventListener(kind, listener, { capture: true });
    return times;
  }, kind);
}

/** Points at the n-th thing that `selector` finds, as far apart as they are spread. */
const pointing = (page, selector) => async (at) => {
  const place = await page.evaluate(
    (selector, at, n) => {
      const nodes = [...document.querySelectorAll(selector)];
      const node = nodes[Math.floor((nodes.length * ((at * 7) % n)) / n)];
      node.scrollIntoView({ block: "nearest" });
      const box = node.getBoundingClientRect();
      return [box.left + box.width / 2, box.top + box.height / 2];
    },
    selector,
    at,
    INPUTS,
  );
  await page.mouse.move(...place);
};

async function report(page, name, kind, act) {
  const times = await answers(page, kind, act);
  const slowest = Math.max(...times).toFixed(0);
  console.log(`  ${name}: ${median(times).toFixed(0)} ms, the slowest of ${times.length} ${slowest} ms`);
}

async function turnTo(page, title) {
  await page.evaluate((title) => [...document.querySelectorAll(".tab")].find((tab) => tab.textContent === title).click(), title);
  await page.evaluate(() => new Promise((done) => setTimeout(done, 1000)));
}

for (const file of process.argv.slice(2)) {
  const openings = [];
  for (let opening = 0; opening < OPENINGS; opening += 1) {
    const browser = await launch();
    const [, time] = await open(browser, file);
    openings.push(time);
    await browser.close();
  }
  const size = (statSync(file).size / 1e6).toFixed(1);
  const slowest = Math.max(...openings).toFixed(0);
  console.log(`${basename(file)}: ${size} MB, opens in ${median(openings).toFixed(0)} ms, the slowest of ${OPENINGS} ${slowest} ms`);
  const browser = await launch();
  const [page] = await open(browser, file);
  if (await page.$(".flow .token")) {
    await page.evaluate(() => new Promise((done) => setTimeout(done, 1000)));
    await report(page, "point at a token of the text", "pointermove", pointing(page, ".flow .token"));
    await report(page, "point at a head", "pointermove", pointing(page, ".small-map"));
    await page.focus(".flow .token");
    await report(page, "walk through the text by keys", "keydown", () => page.keyboard.press("ArrowRight"));
    await turnTo(page, "Heads");
    await report(page, "point at a token between lines", "pointermove", pointing(page, ".column.query .token"));
    await report(page, "point at a head between lines", "pointermove", pointing(page, ".chip"));
    await turnTo(page, "Model");
    await page.click(".thumbnail");
    await report(page, "walk through the map by keys", "keydown", () => page.keyboard.press("ArrowUp"));
    await report(page, "zoom the map by keys", "keydown", (at) => page.keyboard.press(at % 8 < 4 ? "+" : "-"));
  }
  await browser.close();
}
