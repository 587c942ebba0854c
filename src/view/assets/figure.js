/** The index of the number in `sorted` that is nearest to `x`. */
function nearest(sorted, x) {
  let [low, high] = [0, sorted.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < x) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low > 0 && x - sorted[low - 1] <= sorted[low] - x ? low - 1 : low;
}

/** The place of a pointer in the coordinates of an element of a picture. */
function place(node, event) {
  return new DOMPoint(event.clientX, event.clientY).matrixTransform(node.getScreenCTM().inverse());
}

const steps = (step) => step.toLocaleString("en-US");
