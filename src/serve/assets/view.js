/** Parts of other pages: sections of `tinderbox inspect`, rebuilt when a text changes, and whole pages. */
import { ask, lendKey } from "./api.js";

/** A page of the server within this one, as high as its content, so that it does not scroll by itself. */
export function pageFrame(title, src) {
  lendKey();
  const frame = page.element("iframe", { title, src });
  frame.addEventListener("load", () => {
    const root = frame.contentDocument.documentElement;
    const fit = () => (frame.style.height = `${Math.ceil(root.getBoundingClientRect().height)}px`);
    fit();
    new frame.contentWindow.ResizeObserver(fit).observe(frame.contentDocument.body);
    frame.classList.add("ready");
  });
  return frame;
}

export function section(kind, heading, number = 1) {
  const node = page.element("section", { id: `section-${number}`, class: kind, "data-view": kind });
  const title = page.element("h2", {}, heading);
  node.append(title);
  return {
    node,

    /** Shows a response. */
    async show(body, signal) {
      const { html, data, lists } = await ask("/app/view", body, signal);
      // The server has escaped every text of a model; the scripts add the rest as text.
      const made = new DOMParser().parseFromString(html, "text/html");
      const height = node.offsetHeight;
      node.style.minHeight = `${height}px`; // keeps the page from jumping
      node.replaceChildren(title, ...made.body.childNodes);
      page.rebuild(node, JSON.parse(data), (place) => lists[place]);
      node.style.minHeight = "";
    },
  };
}
