/** The best config, to be copied without being read; and one setting in all charts at once. */
page.view("sweep", (section) => {
  const dots = [...section.querySelectorAll("[data-setting]")];
  const mark = (setting) => dots.forEach((dot) => dot.classList.toggle("present", dot.dataset.setting === setting));
  dots.forEach((dot) => page.set(dot, { pointerenter: () => mark(dot.dataset.setting), pointerleave: () => mark(null) }));
  const text = section.querySelector("details pre");
  if (!text) {
    return;
  }
  const button = page.element("button", { type: "button", click: () => copy() }, "Copy the config");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy the config"), 1500);
    } catch {
      text.closest("details").open = true;
      getSelection().selectAllChildren(text); // where the clipboard is not allowed, by hand
    }
  }
  section.querySelector("details").before(page.element("p", {}, button));
});
