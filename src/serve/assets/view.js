/** A section of the pages that `tinderbox inspect` writes, shown and built anew as a text changes. */
import { ask } from "./api.js";

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
