/** Axes of charts: scales, round numbers and their labels, as the program draws them. */

/** Numbers from `low` to `high`, at places between `from` and `to`. */
function axis([low, high], [from, to], isLogarithmic) {
  const of = isLogarithmic ? Math.log : (number) => number;
  const [first, span] = [of(low), of(high) - of(low) || 1];
  const inverse = isLogarithmic ? Math.exp : (number) => number;
  return {
    domain: [low, high],
    range: [from, to],
    at: (number) => from + ((of(Math.min(Math.max(number, low), high)) - first) / span) * (to - from),
    number: (place) => inverse(first + ((place - from) / (to - from)) * span),
  };
}

/** The least number from `least` on that is 1, 2 or 5 times a power of ten. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return ([1, 2, 5].find((factor) => factor * power >= least * (1 - 1e-9)) ?? 10) * power;
}

/** Round numbers of a linear axis, with their labels: at most about `most`, and at least `least` apart. */
function ticks([low, high], most, least) {
  const step = Math.max(roundStep((high - low) / Math.floor(most)), least);
  const numbers = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i += 1) {
    numbers.push(i * step);
  }
  return numbers.map((number) => [number, label(number, step, Math.max(Math.abs(low), Math.abs(high)))]);
}

/** Round numbers of a logarithmic axis; of a short one, those of a linear axis. */
function logarithmicTicks([low, high], most) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    found.push(...[1, 2, 5].map((factor) => factor * 10 ** power));
  }
  const inside = found.filter((number) => number >= low && number <= high);
  if (inside.length < 3) {
    return ticks([low, high], most, 0);
  }
  const decades = inside.filter((number) => Number.isInteger(Math.log10(number)));
  const shown = inside.length > most && decades.length > 1 ? decades : inside;
  return shown.map((number) => [number, label(number, number, high)]);
}

/** A number with as many digits as tell it from the next, `step` away. */
function label(number, step, largest) {
  if (Math.abs(number) < step * 1e-6) {
    return "0";
  }
  const digits = (n) => Math.min(Math.max(n, 0), 9);
  const power = (n) => Math.floor(Math.log10(Math.abs(n)));
  if (largest < 1e-3 || largest >= 1e9) {
    return number.toExponential(digits(power(number) - power(step))).replace("e+", "e").replace(".0e", "e");
  }
  return step >= 1 && number >= 1 ? steps(Math.round(number)) : number.toFixed(digits(-power(step)));
}
