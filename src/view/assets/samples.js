page.view("samples", (section) => {
  const scrubber = section.querySelector(".scrubber");
  const range = scrubber.querySelector("input");
  const samples = [...section.querySelectorAll("ol > li")];
  const show = () => samples.forEach((sample, index) => (sample.hidden = index !== Number(range.value)));
  if (samples.length > 1) {
    scrubber.hidden = false;
    range.addEventListener("input", show);
    show();
  }
});
