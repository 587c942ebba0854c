/** The report of a run, updated while it trains without scrolling. */
import { ask, askText, statusLine } from "./api.js";
import { pageFrame } from "./view.js";

const EVERY_MS = 5000;

export function report(main, run) {
  const path = `/app/report/${encodeURIComponent(run.name)}`;
  const badge = page.element("p", { hidden: true }, page.element("span", { class: "badge running" }, "live"));
  const status = statusLine();
  const place = page.element("div", { class: "report" });
  main.append(badge, status, place);
  let state = null;

  function frameOf(hash) {
    const frame = pageFrame(`Report of ${run.name}`, path + hash);
    frame.addEventListener("load", () => {
      [...place.children].filter((other) => other !== frame).forEach((other) => other.remove());
    });
    return frame;
  }

  async function refresh() {
    const { runs } = await ask("/app/runs");
    const { status: now, step } = runs.find(({ name }) => name === run.name) ?? {};
    badge.hidden = now !== "running";
    if (`${now} ${step}` !== state) {
      state = `${now} ${step}`;
      await askText(path); // throws the error, if there is one
      place.append(frameOf(place.querySelector("iframe")?.contentWindow.location.hash ?? ""));
    }
    status.textContent = "";
  }

  const again = () => refresh().catch((error) => (status.textContent = error.message));
  again();
  setInterval(() => !document.hidden && again(), EVERY_MS);
}
