/** The most numbers that are held unpacked: 256 MiB. */
const MOST_UNPACKED = 2 ** 26;

/**
 * The numbers of one prompt, as `Data` in attention_html.rs writes them.
 *
 * Layers and heads are indices among those that are shown; `layers[index]` and `heads[index]` are their numbers in
 * the model. Tokens are positions.
 */
class Attention {
  /** `list(place)` is the text of a list of numbers. */
  constructor(data, list) {
    this.tokens = data.tokens;
    /** The tokens' own text, with its blanks and line ends. */
    this.texts = data.texts;
    /** The tokens in words. */
    this.names = data.names;
    /** After each token: `top`, the likeliest as [text, probability], and `came`, [probability, rank] of the next. */
    this.predictions = data.predictions;
    this.telling = tellingOf(data);
    /** Whether the page has queries and keys: a large one has not. */
    this.hasVectors = data.queries.length > 0;
    this.layers = data.layers;
    this.heads = data.heads;
    this.kvHeads = data.kv_heads;
    this.headDim = data.head_dim;
    this.prepared = data.prepared;
    const scale = data.scale ?? 1 / Math.sqrt(data.head_dim);
    const cap = data.softcap;
    /** The score of a product of a query and a key, as the softmax takes it. */
    this.scaled = (sum) => (cap === null ? sum * scale : cap * Math.tanh((sum * scale) / cap));
    /** The same in words. */
    this.scaling = (data.scale === null ? `÷ √${data.head_dim}` : `× ${data.scale}`) + (cap === null ? "" : `, capped at ${cap}`);
    this.nStages = data.similarity.length;
    /** Whether the first token, which heads attend to when they find nothing, is left out of the weights. */
    this.isWithoutFirst = false;
    this.data = data;
    this.list = list;
    this.unpacked = new Map();
    this.nUnpacked = 0;
  }

  get nTokens() {
    return this.tokens.length;
  }

  /** The weights of `query` for each token up to itself, which sum to 1. */
  weights(layer, head, query) {
    return this.triangle(layer, head).subarray(triangleStart(query), triangleStart(query + 1));
  }

  /** The weights of all queries, one row after the other. */
  triangle(layer, head) {
    const place = this.data.weights[layer][head];
    const read = WEIGHTS[this.data.packing];
    return this.isWithoutFirst ? this.unpack(place, (bytes) => withoutFirst(read(bytes)), `${place} without`) : this.unpack(place, read);
  }

  /** The weight of `query` for `key`: 0 for a later token. */
  weight(layer, head, query, key) {
    return key > query ? 0 : this.weights(layer, head, query)[key];
  }

  /** The first token that `query` may see in a layer. */
  firstSeen(layer, query) {
    return Math.max(query + 1 - (this.data.windows[layer] ?? Infinity), 0);
  }

  /** The query vector of a token, normed and rotated. */
  query(layer, head, token) {
    return this.vector(this.data.queries[layer][head], token);
  }

  /** The key vector of a token, normed and rotated. */
  key(layer, head, token) {
    return this.vector(this.data.keys[layer][this.kvHeads[head]], token);
  }

  /** The cosine of two tokens' vectors: of the embeddings at stage 0, after layer n at stage n + 1. */
  cosine(stage, one, other) {
    const triangle = this.unpack(this.data.similarity[stage], COSINES[this.data.packing]);
    return triangle[triangleStart(Math.max(one, other)) + Math.min(one, other)];
  }

  /** The `n` tokens that `query` looks at most, as [token, weight], largest first; the earlier first among equals. */
  strongest(layer, head, query, n) {
    return largest(this.weights(layer, head, query), n);
  }

  /** The `n` tokens that look most at `key`, likewise. */
  admirers(layer, head, key, n) {
    return largest(this.weightsFor(layer, head, key), n);
  }

  /** The weight of each query for `key`: 0 before it. */
  weightsFor(layer, head, key) {
    const triangle = this.triangle(layer, head);
    return Float32Array.from(this.tokens, (_, query) => (query < key ? 0 : triangle[triangleStart(query) + key]));
  }

  /** How many of the tokens after `key` look at it most. */
  followers(layer, head, key) {
    const triangle = this.triangle(layer, head);
    let n = 0;
    for (let query = key + 1; query < this.nTokens; query += 1) {
      const row = triangle.subarray(triangleStart(query), triangleStart(query + 1));
      n += row.every((weight, other) => other === key || weight < row[key]);
    }
    return n;
  }

  /** The probability that a token had before it came; `null` of the first, which nothing came before. */
  chance(token) {
    return token === 0 ? null : (this.predictions[token - 1].came?.[0] ?? null);
  }

  /** How much the loss of this text changes without a head, nats per token; `null` if that was not measured. */
  effect(layer, head) {
    return this.data.effects?.[layer][head] ?? null;
  }

  vector(place, token) {
    return this.unpack(place, floats).subarray(token * this.headDim, (token + 1) * this.headDim);
  }

  /** The numbers of a list, read when they are first asked for; those used last are kept, by their key. */
  unpack(place, read, key = place) {
    let numbers = this.unpacked.get(key);
    if (numbers === undefined) {
      numbers = read(bytesOf(this.list(place)));
      this.nUnpacked += numbers.length;
      for (const [old, { length }] of this.unpacked) {
        if (this.nUnpacked <= MOST_UNPACKED) {
          break;
        }
        this.unpacked.delete(old);
        this.nUnpacked -= length;
      }
    } else {
      this.unpacked.delete(key); // and comes last again
    }
    this.unpacked.set(key, numbers);
    return numbers;
  }
}

/** The head and the token with which the page opens; `null` if there are none. */
function tellingOf({ telling, layers, heads }) {
  return telling && { place: { layer: layers.indexOf(telling.layer), head: heads.indexOf(telling.head) }, query: telling.query };
}

function bytesOf(text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let at = 0; at < bytes.length; at += 1) {
    bytes[at] = characters.charCodeAt(at);
  }
  return bytes;
}

/** 32-bit floats: little endian, as every machine that runs a browser. */
function floats(bytes) {
  return new Float32Array(bytes.buffer);
}

/** The numbers of `steps` in units of 1/`n`, each changed by `of`. */
function inSteps(steps, n, of = (x) => x) {
  const numbers = new Float32Array(steps.length);
  for (let at = 0; at < numbers.length; at += 1) {
    numbers[at] = of(steps[at] / n); // several times as fast as `from`
  }
  return numbers;
}

const squared = (x) => x * x;

/** How weights are read, by the form of the lists: rounded ones are their roots in steps. */
const WEIGHTS = {
  exact: floats,
  coarse: (bytes) => inSteps(bytes, 255, squared),
};

/** How cosines are read. */
const COSINES = {
  exact: floats,
  coarse: (bytes) => inSteps(new Int8Array(bytes.buffer), 127),
};

/** The weights as they would be if only the first token itself saw it: the others of a row add up to 1. */
function withoutFirst(weights) {
  const numbers = weights.slice();
  for (let query = 1; triangleStart(query) < numbers.length; query += 1) {
    const row = numbers.subarray(triangleStart(query), triangleStart(query + 1));
    const rest = row.reduce((sum, weight) => sum + weight, 0) - row[0];
    row.forEach((weight, key) => (row[key] = key === 0 || rest === 0 ? 0 : weight / rest));
  }
  return numbers;
}

/** The start of a row in the lower triangle of a matrix, written row by row. */
function triangleStart(row) {
  return (row * (row + 1)) / 2;
}

/** The `n` largest weights above 0, as [position, weight]. */
function largest(weights, n) {
  return Array.from(weights, (weight, position) => [position, weight])
    .filter(([, weight]) => weight > 0)
    .sort((a, b) => b[1] - a[1])
    .slice(0, n);
}

/**
 * The steps from a query to its weights, by the plain formula in double precision: for each key up to the query
 * the products, their sum, the sum divided by the root of their number (or scaled and capped as the model does), and the softmax
 * of those that it sees.
 */
function score(attention, layer, head, query) {
  const q = attention.query(layer, head, query);
  const first = attention.firstSeen(layer, query);
  const rows = [];
  for (let key = 0; key <= query; key += 1) {
    const k = attention.key(layer, head, key);
    const products = Array.from(q, (x, dimension) => x * k[dimension]);
    const sum = products.reduce((total, x) => total + x, 0);
    rows.push({ key, k, products, sum, scaled: attention.scaled(sum), softmax: 0 });
  }
  const seen = rows.slice(first);
  const highest = Math.max(...seen.map((row) => row.scaled)); // or exp overflows
  const total = seen.reduce((sum, row) => sum + Math.exp(row.scaled - highest), 0);
  for (const row of seen) {
    row.softmax = Math.exp(row.scaled - highest) / total;
  }
  return { q, rows };
}
