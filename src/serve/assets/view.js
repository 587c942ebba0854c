/** Parts of other pages: a section of those that `tinderbox inspect` writes, built anew as a text changes, and whole ones. */
import { ask, lendKey } from "./api.js";

/** A page of the server in this one, as high as what it shows, so that this page scrolls and not a part of it. */
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

    /** Shows the answer to a request. */
    async show(body, signal) {
      const { html, data, lists } = await ask("/app/view", body, signal);
      // Made by the program, with every text of a model escaped: the scripts build the rest of it as text.
      const made = new DOMParser().parseFromString(html, "text/html");
      const height = node.offsetHeight;
      node.style.minHeight = `${height}px`; // or the page would jump
      node.replaceChildren(title, ...made.body.childNodes);
      page.rebuild(node, JSON.parse(data), (place) => lists[place]);
      node.style.minHeight = "";
    },
  };
}
