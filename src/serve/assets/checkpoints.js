/** The checkpoints that a run keeps: a slider, and a button that replays them. */

const DRAG_MS = 100; // checkpoints that the slider only passes are not opened
const PAUSE_MS = 700;

/** Chooses `now.step`, -1 for the run's current checkpoint; `changed()` resolves once it is shown. */
export function checkpoints(run, { checkpoints: kept }, now, changed) {
  const steps = kept.map(({ step }) => step);
  if (!steps.includes(now.step)) {
    now.step = -1; // it was removed
  }
  let playing = null;
  let dragged = 0;

  function usual() {
    const name = run.name.split("/").at(-1);
    const named = kept.findIndex(({ model }) => model.endsWith(`/${name}`));
    return named >= 0 ? named : name === "last" ? kept.length - 1 : kept.findIndex(({ is_best: isBest }) => isBest);
  }

  const place = () => (now.step < 0 ? Math.max(usual(), 0) : steps.indexOf(now.step));
  const input = page.element("input", {
    type: "range", min: 0, max: Math.max(kept.length - 1, 0), step: 1, "aria-label": "Checkpoint",
    input: () => {
      playing = null;
      now.step = steps[input.value];
      show();
      clearTimeout(dragged);
      dragged = setTimeout(changed, DRAG_MS);
    },
  });
  const shown = page.element("output");
  const button = page.element("button", { type: "button", click: () => replay() }, "Replay");

  function show() {
    const { step, is_best: isBest } = kept[place()] ?? {};
    input.value = place();
    shown.textContent = `step ${step?.toLocaleString("en")}${isBest ? ", the best" : ""}`;
    page.set(input, { "aria-valuetext": shown.textContent });
    button.textContent = playing ? "Stop" : "Replay";
  }

  /** Shows every checkpoint, from the first to the last. */
  async function replay() {
    const mine = (playing = playing ? null : {});
    for (let at = 0; mine && at < steps.length && playing === mine; at += 1) {
      now.step = steps[at];
      show();
      await changed();
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
    if (playing === mine) {
      playing = null;
    }
    show();
  }

  const node = page.element("div", { class: "controls" }, page.element("label", { class: "slider checkpoint" }, "Checkpoint", input, shown), button);
  node.hidden = kept.length < 2;
  show();
  return {
    node,

    /** The name of the chosen checkpoint for requests. */
    model: () => (now.step < 0 ? run.name : kept[place()].model),
  };
}
