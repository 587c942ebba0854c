/** Buttons to copy a link to the page's state and to save a picture of a section. */
{
  const MARGIN = 20;
  const LINE = 20;
  const LEFT_OUT = new Set(["SELECT", "INPUT", "SCRIPT", "STYLE"]);

  const escaped = (text) => text.replace(/[&<>"]/g, (character) => `&#${character.codePointAt(0)};`);
  const number = (x) => String(Math.round(10 * x) / 10);

  /** `node` as it lies on the screen, as elements of SVG whose origin is that of `frame`. */
  function drawn(node, frame) {
    const style = getComputedStyle(node);
    const box = node.getBoundingClientRect();
    if (LEFT_OUT.has(node.tagName) || node.matches(".page-actions, .controls, .about, .telling button") || style.visibility === "hidden" || box.width === 0 || box.height === 0) {
      return "";
    }
    const [x, y] = [number(box.left - frame.left), number(box.top - frame.top)];
    const place = `x="${x}" y="${y}" width="${number(box.width)}" height="${number(box.height)}"`;
    let svg = "";
    if (style.backgroundColor !== "rgba(0, 0, 0, 0)") {
      svg += `<rect ${place} fill="${style.backgroundColor}" rx="${parseFloat(style.borderRadius) || 0}"/>`;
    }
    if (node.tagName === "svg") {
      return `${svg}${styled(node, { x, y, width: box.width, height: box.height })}`;
    }
    if (node.tagName === "CANVAS") {
      return `${svg}<image ${place} preserveAspectRatio="none" style="image-rendering:pixelated" href="${node.toDataURL()}"/>`;
    }
    for (const child of node.childNodes) {
      if (child.nodeType === Node.ELEMENT_NODE) {
        svg += drawn(child, frame);
      } else if (child.nodeType === Node.TEXT_NODE) {
        svg += words(child, style, frame);
      }
    }
    return style.opacity === "1" ? svg : `<g opacity="${style.opacity}">${svg}</g>`;
  }

  /** A picture of the page with its styles as attributes, and these. */
  function styled(svg, attributes) {
    const copy = svg.cloneNode(true);
    const copies = [copy, ...copy.querySelectorAll("*")];
    [svg, ...svg.querySelectorAll("*")].forEach((node, at) => {
      const style = getComputedStyle(node);
      const names = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "visibility", "font-family", "font-size", "font-weight"];
      page.set(copies[at], Object.fromEntries(names.map((name) => [name, style.getPropertyValue(name)])));
    });
    return new XMLSerializer().serializeToString(page.set(copy, attributes));
  }

  /** The words of a text, each where it is. */
  function words(text, style, frame) {
    const font = `font-family="${escaped(style.fontFamily)}" font-size="${style.fontSize}" font-weight="${style.fontWeight}"`;
    return Array.from(text.data.matchAll(/\S+/g), ({ 0: word, index }) => {
      const range = document.createRange();
      range.setStart(text, index);
      range.setEnd(text, index + word.length);
      const { left, bottom, height, width } = range.getBoundingClientRect();
      const [x, y] = [number(left - frame.left), number(bottom - frame.top - 0.24 * height)];
      return width > 0 ? `<text x="${x}" y="${y}" ${font} fill="${style.color}">${escaped(word)}</text>` : "";
    }).join("");
  }

  /** A picture of `node` below the lines of a caption. */
  function picture(node, caption) {
    node.querySelectorAll("canvas").forEach((canvas) => canvas.dispatchEvent(new Event("picture"))); // draw all of it
    const frame = node.getBoundingClientRect();
    const style = getComputedStyle(document.body);
    const top = MARGIN + LINE * caption.length + 8;
    const [width, height] = [frame.width + 2 * MARGIN, frame.height + top + MARGIN].map(Math.ceil);
    const line = (text, at) =>
      `<text x="${MARGIN}" y="${MARGIN + LINE * at + 12}" font-family="system-ui, sans-serif" font-size="14" ` +
      `font-weight="${at === 0 ? 600 : 400}" fill="${style.color}">${escaped(text)}</text>`;
    return {
      width,
      height,
      svg:
        `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">` +
        `<rect width="100%" height="100%" fill="${style.backgroundColor}"/>${caption.map(line).join("")}` +
        `<g transform="translate(${MARGIN} ${top})">${drawn(node, frame)}</g></svg>`,
    };
  }

  /** Run and step, the prompt or heading, and what is shown. */
  function caption(section, title) {
    const about = document.querySelector(".page-about")?.textContent ?? document.title;
    const heading = section.querySelector("h2").textContent.replaceAll("\u200b", "");
    return [about, heading, title].filter((line) => line);
  }

  function save(address, name) {
    page.element("a", { href: address, download: name }).click();
  }

  const address = (svg) => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;

  async function saveAsPng({ svg, width, height }, name) {
    const image = new Image();
    image.src = address(svg);
    await image.decode();
    const canvas = page.element("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    save(canvas.toDataURL(), name);
  }

  /** Puts the address on the clipboard; where that is not allowed, shows it to be copied by hand. */
  async function copyLink(button) {
    try {
      await navigator.clipboard.writeText(location.href);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy link"), 1500);
    } catch {
      const field = page.element("input", { readonly: true, value: location.href, "aria-label": "Link" });
      button.replaceWith(field);
      field.select();
    }
  }

  Object.assign(page, {
    picture,

    /** Buttons for a section; `node()` is what a picture shows, `title()` a line about it. */
    actions(section, node, title = () => "") {
      const button = (name, click) => page.element("button", { type: "button", click }, name);
      const name = () => `${document.title} ${title()}`.trim().replace(/[^\p{L}\p{N}.]+/gu, "-").slice(0, 80);
      const shot = () => picture(node(), caption(section, title()));
      const link = button("Copy link", () => copyLink(link));
      return page.element(
        "div",
        { class: "page-actions" },
        link,
        button("Save PNG", () => saveAsPng(shot(), `${name()}.png`)),
        button("Save SVG", () => save(address(shot().svg), `${name()}.svg`)),
      );
    },
  });
}
