// check_pages.mjs [--browser firefox] [--pictures FOLDER] PAGE...: see check_pages.sh, which fetches what this imports.
// Exits with 1 if anything is wrong.
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync } from "node:fs";
import { basename, resolve } from "node:path";
import { parseArgs } from "node:util";
import puppeteer from "puppeteer-core";

const { values, positionals: files } = parseArgs({
  allowPositionals: true,
  options: { browser: { type: "string", default: "chromium" }, pictures: { type: "string" } },
});
const isFirefox = values.browser === "firefox";
const axe = readFileSync(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const program = isFirefox ? "firefox-esr" : (process.env.TINDERBOX_CHROMIUM ?? "chromium");
const executablePath = execFileSync("sh", ["-c", 'command -v "$0"', program], { encoding: "utf8" }).trim();
const WIDTHS = [360, 390, 1280, 1920];
const HEIGHT = 900;
/** The smallest letters, in pixels. */
const LETTERS = 11;
let nWrong = 0;

/** Says what is wrong. */
function wrong(...words) {
  console.log(words.join(", "));
  nWrong += 1;
}

function launch(theme) {
  const isDark = theme === "dark";
  return puppeteer.launch({
    browser: isFirefox ? "firefox" : "chrome",
    executablePath,
    headless: true,
    timeout: 120_000,
    protocolTimeout: 600_000,
    args: isFirefox ? [] : ["--no-sandbox", "--disable-gpu", `--blink-settings=preferredColorScheme=${isDark ? 0 : 1}`],
    extraPrefsFirefox: { "layout.css.prefers-color-scheme.content-override": isDark ? 0 : 1 },
  });
}

const settle = (page) => page.evaluate(() => new Promise((done) => setTimeout(done, 300)));
const nameOf = (page, tab) => page.evaluate((at) => document.querySelectorAll("[role=tab]")[at]?.textContent ?? "page", tab);

/** What axe finds, what is too wide, and letters that are too small. */
async function look(page, where) {
  const found = await page.evaluate((least) => {
    const small = [...document.querySelectorAll("main *")].find((node) => {
      const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim() !== "");
      const isSeen = node.checkVisibility() && node.getBoundingClientRect().width > 1;
      // Letters of a picture shrink with it.
      const scale = node.ownerSVGElement?.getScreenCTM().a ?? 1;
      return hasText && isSeen && parseFloat(getComputedStyle(node).fontSize) * scale < least;
    });
    const root = document.documentElement;
    return { over: root.scrollWidth - root.clientWidth, small: small?.outerHTML.slice(0, 120) };
  }, LETTERS);
  if (found.over >= 1) {
    wrong(where, `${found.over} pixels wider than the screen`);
  }
  if (found.small) {
    wrong(where, `letters of less than ${LETTERS} pixels: ${found.small}`);
  }
  const { violations } = await page.evaluate("axe.run()");
  for (const { id, impact, nodes } of violations) {
    wrong(where, impact, id, `${nodes.length} times, first ${nodes[0].html.slice(0, 120)}`);
  }
}

/** Presses Tab until the focus is on what `selector` finds. */
async function focus(page, selector) {
  for (let presses = 0; presses < 60; presses += 1) {
    await page.keyboard.press("Tab");
    const [isThere, outline] = await page.evaluate((wanted) => {
      const now = document.activeElement;
      return [now.matches(wanted), getComputedStyle(now).outlineStyle];
    }, selector);
    if (isThere) {
      return outline !== "none";
    }
  }
  return false;
}

/** Touches the middle of the first element that `selector` finds. */
async function touch(page, selector) {
  const place = await page.evaluate((wanted) => {
    const node = document.querySelector(wanted);
    node?.scrollIntoView({ block: "center", inline: "center" });
    const box = node?.getBoundingClientRect();
    return box && [box.left + box.width / 2, box.top + box.height / 2];
  }, selector);
  if (place) {
    await page.touchscreen.tap(...place);
    await settle(page);
  }
  return place !== undefined;
}

/** Whether a finger turns to a tab, keeps a token, reads a cell and opens a map. */
async function fingers(page, where) {
  const holds = (expression) => page.evaluate(expression);
  if (await touch(page, "[role=tab]:nth-child(2)")) {
    (await holds("document.querySelectorAll('[role=tab]')[1].ariaSelected === 'true'")) || wrong(where, "a finger turns no tab");
    await touch(page, "[role=tab]:nth-child(1)");
    await touch(page, ".flow .token:nth-child(1)");
    (await holds("document.querySelector('.flow .token[aria-pressed=true]') !== null")) || wrong(where, "a finger keeps no token");
    await touch(page, ".small-map:last-of-type");
    (await holds("[...document.querySelectorAll('.small-map')].at(-1).ariaPressed === 'true'")) || wrong(where, "a finger chooses no head");
  }
  if (await touch(page, ".cells td[data-about]")) {
    (await holds("document.querySelector('.cells td.present') !== null")) || wrong(where, "a finger reads no cell");
  }
}

for (const theme of ["light", "dark"]) {
  const browser = await launch(theme);
  for (const file of files) {
    for (const width of WIDTHS) {
      const page = await browser.newPage();
      const at = `${basename(file)}, ${values.browser}, ${width} pixels, ${theme}`;
      page.on("pageerror", (error) => wrong(at, error.message));
      page.on("console", (message) => ["error", "warn"].includes(message.type()) && wrong(at, message.text()));
      await page.setViewport({ width, height: HEIGHT });
      const isServed = file.startsWith("http:");
      await page.goto(isServed ? file : `file://${resolve(file)}`);
      await new Promise((done) => setTimeout(done, isServed ? 3000 : 0)); // in which it asks its server
      await page.evaluate(axe);
      const nTabs = await page.evaluate(() => document.querySelectorAll("section:first-of-type [role=tab]").length);
      if (nTabs > 0 && !(await focus(page, "[role=tab]"))) {
        wrong(at, "keys do not reach the tabs, or it does not show");
      }
      for (let tab = 0; tab < Math.max(nTabs, 1); tab += 1) {
        if (tab > 0) {
          await page.keyboard.press("ArrowRight");
          await page.keyboard.press("Enter");
        }
        await settle(page);
        const name = await nameOf(page, tab);
        const isThere = await page.evaluate((n) => document.querySelectorAll("[role=tab]")[n]?.ariaSelected !== "false", tab);
        isThere || wrong(at, name, "keys do not turn to it");
        await look(page, `${at}, ${name}`);
        if (values.pictures) {
          mkdirSync(values.pictures, { recursive: true });
          const picture = [basename(file, ".html").replace(/\W/g, "-"), name, width, theme, values.browser].join("-").replaceAll(" ", "_");
          await page.screenshot({ path: `${values.pictures}/${picture}.png`, fullPage: true });
        }
      }
      await fingers(page, at);
      await page.close();
    }
  }
  await browser.close();
}
console.log(`${files.length} pages, ${nWrong} wrong`);
process.exit(nWrong > 0 ? 1 : 0);
