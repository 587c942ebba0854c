/** The page around the views: finds the view of an address, and links the views and runs. */
import { ask, askText, problem } from "./api.js";
import { chat } from "./chat.js";
import { compare } from "./compare.js";
import { look } from "./look.js";
import { report } from "./report.js";
import { runs } from "./runs.js";
import { pageFrame } from "./view.js";
import { why } from "./why.js";
import { write } from "./write.js";

/** The views of a run, by the end of their address. */
const OF_RUN = { "": ["Report", report], write: ["Write", write], look: ["Look", look], why: ["Why", why], chat: ["Chat", chat] };

const main = document.querySelector("#main");

/** The names of the run and the view in the address. */
function place() {
  const [, first, run, view = ""] = location.pathname.split("/");
  return first === "run" ? { run: decodeURIComponent(run), view } : { run: null, view: first };
}

function address(run, view) {
  return `/run/${encodeURIComponent(run)}${view ? `/${view}` : ""}`;
}

/** The links to the views, and a list of runs. */
function rail(all, { run, view }, hasChat, hasSweep) {
  const link = (name, to, isPresent) =>
    page.element("a", { href: to, "aria-current": isPresent ? "page" : null }, name);
  const links = [link("Runs", "/", run === null && view === "")];
  if (run !== null) {
    const views = Object.entries(OF_RUN).filter(([key]) => key !== "chat" || hasChat);
    links.push(...views.map(([key, [name]]) => link(name, address(run, key), key === view)));
    const list = page.element(
      "select",
      { "aria-label": "Run", change: () => location.assign(address(list.value, view)) },
      ...all.map(({ name }) => page.element("option", { value: name, selected: name === run }, name)),
    );
    links.unshift(list);
  }
  links.push(link("Compare", run === null ? "/compare" : `/compare?runs=${encodeURIComponent(run)}`, view === "compare"));
  if (hasSweep) {
    links.push(link("Sweep", "/sweep", run === null && view === "sweep"));
  }
  document.querySelector("#rail").replaceChildren(...links);
}

async function sweep(node) {
  const path = "/app/sweep";
  await askText(path); // throws the error, if there is one
  node.append(page.element("div", { class: "report" }, pageFrame("The sweep", path)));
}

async function start() {
  const here = place();
  const title = (name, about) => {
    document.querySelector("#title").textContent = name;
    document.title = about ? `${name} · ${about}` : name;
  };
  const { runs: all, has_sweep: hasSweep } = await ask("/app/runs");
  if (here.run === null) {
    rail(all, here, false, hasSweep);
    title({ compare: "Compare", sweep: "Sweep" }[here.view] ?? "Tinderbox");
    return ({ compare, sweep }[here.view] ?? runs)(main, all);
  }
  const found = all.find(({ name }) => name === here.run);
  const view = OF_RUN[here.view];
  if (!found || !view) {
    rail(all, { run: null, view: null }, false, hasSweep);
    main.append(problem(found ? `There is no page ${location.pathname}.` : `There is no run ${here.run}.`));
    return undefined;
  }
  const about = await ask(`/app/run/${encodeURIComponent(here.run)}`);
  rail(all, here, about.has_chat, hasSweep);
  title(here.run, view[0]);
  if (here.view !== "" && !found.has_checkpoint) {
    main.append(problem("This run has no checkpoint yet: there is nothing to write with. Its report grows as it trains."));
    return undefined;
  }
  return view[1](main, found, about, all);
}

start().catch((error) => main.append(problem(error.message)));
