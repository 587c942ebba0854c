"use strict";

/**
 * The parts of every page: a switch between light and dark, and a registry of views.
 *
 * A view builds the sections of one kind. It takes a section's element, its data and a function that reads one of its
 * lists, and looks for elements inside that section only, so that several views, and several sections of one view,
 * share a page.
 */
const page = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const THEME = "tinderbox-theme"; // the key of the reader's choice
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();
  const redraws = [];
  let nIds = 0;
  let rebuilt = new AbortController(); // ends what a section listens to that is built again

  /** Sets attributes. A function listens to the event of that name; `false` and `null` remove an attribute. */
  function set(node, attributes) {
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") {
        node.addEventListener(name, value);
      } else if (value === false || value === null || value === undefined) {
        node.removeAttribute(name);
      } else if (node.getAttribute(name) !== String(value)) {
        node.setAttribute(name, value === true ? "" : value); // a browser styles anew what is set, changed or not
      }
    }
    return node;
  }

  /** A new element with attributes and children. Strings become text, never markup. */
  function element(tag, attributes = {}, ...children) {
    const node = set(document.createElement(tag), attributes);
    node.append(...children);
    return node;
  }

  /** A new element of SVG. */
  function svg(tag, attributes = {}, ...children) {
    const node = set(document.createElementNS(SVG, tag), attributes);
    node.append(...children);
    return node;
  }

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  }

  /** The stored theme. A page opened from disk may not be allowed to store it. */
  function remembered(write) {
    try {
      if (write) {
        localStorage.setItem(THEME, write);
      }
      return localStorage.getItem(THEME);
    } catch {
      return null;
    }
  }

  function startTheme() {
    const button = document.querySelector(".page-theme");
    const apply = () => {
      button.textContent = isDark() ? "Light theme" : "Dark theme";
      redraws.forEach((redraw) => redraw());
    };
    const kept = remembered();
    if (kept === "light" || kept === "dark") {
      root.dataset.theme = kept;
    }
    button.hidden = false;
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remembered(root.dataset.theme);
      apply();
    });
    system.addEventListener("change", apply);
    // Another tab, or the page around this one, changed it.
    addEventListener("storage", ({ key, newValue }) => {
      if (key === THEME && newValue) {
        root.dataset.theme = newValue;
        apply();
      }
    });
    apply();
  }

  /** The state of a section in the page's address, `#section-2&layer=3`; `null` if it is about another. */
  function stateOf(section) {
    const [id, ...pairs] = location.hash.slice(1).split("&");
    return id === section.id && pairs.length > 0 ? new URLSearchParams(pairs.join("&")) : null;
  }

  return {
    element,
    svg,
    set,
    isDark,

    /** Writes the state of a section into the page's address, so that a link leads back to it. */
    keep(section, state) {
      const address = `#${section.id}&${new URLSearchParams(state)}`;
      if (location.hash !== address) {
        history.replaceState(null, "", address);
      }
    },

    /** Calls `apply(state)` with the state that the address has for a section, now and whenever a link changes it. */
    onState(section, apply) {
      const take = () => {
        const state = stateOf(section);
        if (state) {
          apply(state);
          if (document.querySelectorAll("section").length > 1) {
            section.scrollIntoView();
          }
        }
      };
      addEventListener("hashchange", take, { signal: rebuilt.signal });
      take();
    },

    /** The first section of a kind; `null` if there is none. */
    section: (kind) => document.querySelector(`section[data-view="${kind}"]`),

    /** A new id, for attributes that refer to other elements. */
    id: () => `page-${(nIds += 1)}`,

    /** Registers `build(element, data, list)` for the sections of a kind; `list(place)` is a text in base 64. */
    view: (kind, build) => views.set(kind, build),

    /** Calls `redraw` whenever colours change: a canvas does not follow styles. */
    onTheme: (redraw) => redraws.push(redraw),

    /** Builds a section after it was given other data; of several, only one may follow the theme or keep its state. */
    rebuild(section, data, list) {
      rebuilt.abort();
      rebuilt = new AbortController();
      redraws.length = 0;
      views.get(section.dataset.view)(section, data, list);
    },

    /** Builds every section that has a view. */
    start() {
      root.classList.toggle("framed", window !== window.parent);
      startTheme();
      for (const section of document.querySelectorAll("section[data-view]")) {
        const build = views.get(section.dataset.view);
        const data = section.querySelector(":scope > script[type='application/json']");
        const lists = section.querySelectorAll(":scope > script[type='text/plain']");
        try {
          build?.(section, data && JSON.parse(data.textContent), (place) => lists[place].textContent);
        } catch (error) {
          // A section that an old browser cannot show must not break the others.
          console.error(error);
          section.append(element("p", {}, `This browser cannot show this part: ${error}`));
        }
      }
    },
  };
})();
