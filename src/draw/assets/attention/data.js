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
    this.layers = data.layers;
    this.heads = data.heads;
    this.kvHeads = data.kv_heads;
    this.headDim = data.head_dim;
    this.prepared = data.prepared;
    this.scale = data.scale ?? 1 / Math.sqrt(data.head_dim);
    /** The factor of scores in words. */
    this.scaling = data.scale === null ? `÷ √${data.head_dim}` : `× ${data.scale}`;
    this.nStages = data.similarity.length;
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
    return this.unpack(place, this.isExact ? floats : (bytes) => weightsInSteps(bytes, triangleStart(this.nTokens)));
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
    const triangle = this.unpack(this.data.similarity[stage], this.isExact ? floats : (bytes) => cosinesInSteps(bytes));
    return triangle[triangleStart(Math.max(one, other)) + Math.min(one, other)];
  }

  /** The `n` tokens that `query` looks at most, as [token, weight], largest first; the earlier first among equals. */
  strongest(layer, head, query, n) {
    return largest(this.weights(layer, head, query), n);
  }

  /** The `n` tokens that look most at `key`, likewise. */
  admirers(layer, head, key, n) {
    const weights = this.tokens.map((_, query) => this.weight(layer, head, query, key));
    return largest(weights, n);
  }

  get isExact() {
    return this.data.packing === "exact";
  }

  vector(place, token) {
    const read = this.isExact ? floats : (bytes) => vectorsInSteps(bytes, this.nTokens);
    return this.unpack(place, read).subarray(token * this.headDim, (token + 1) * this.headDim);
  }

  /** The numbers of a list, read when they are first asked for; those used last are kept. */
  unpack(place, read) {
    let numbers = this.unpacked.get(place);
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
      this.unpacked.delete(place); // and comes last again
    }
    this.unpacked.set(place, numbers);
    return numbers;
  }
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

/** `n` weights in steps of 1/65535, each in LEB128. */
function weightsInSteps(bytes, n) {
  const weights = new Float32Array(n);
  let from = 0;
  for (let at = 0; at < n; at += 1) {
    let byte = bytes[from++];
    let steps = byte & 0x7f;
    for (let shift = 7; byte & 0x80; shift += 7) {
      byte = bytes[from++];
      steps |= (byte & 0x7f) << shift;
    }
    weights[at] = steps / 65535;
  }
  return weights;
}

/** `n` vectors: the largest number of each, then all in steps of 1/32767 of that. */
function vectorsInSteps(bytes, n) {
  const largest = new Float32Array(bytes.buffer, 0, n);
  const vectors = cosinesInSteps(bytes, largest.byteLength);
  const length = vectors.length / n;
  for (let at = 0; at < vectors.length; at += 1) {
    vectors[at] *= largest[Math.floor(at / length)];
  }
  return vectors;
}

/** Cosines in steps of 1/32767. */
function cosinesInSteps(bytes, start = 0) {
  const steps = new Int16Array(bytes.buffer, start);
  const cosines = new Float32Array(steps.length);
  for (let at = 0; at < steps.length; at += 1) {
    cosines[at] = steps[at] / 32767;
  }
  return cosines;
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
 * the products, their sum, the sum divided by the root of their number (or scaled as the model does), and the softmax
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
    rows.push({ key, k, products, sum, scaled: sum * attention.scale, softmax: 0 });
  }
  const seen = rows.slice(first);
  const highest = Math.max(...seen.map((row) => row.scaled)); // or exp overflows
  const total = seen.reduce((sum, row) => sum + Math.exp(row.scaled - highest), 0);
  for (const row of seen) {
    row.softmax = Math.exp(row.scaled - highest) / total;
  }
  return { q, rows };
}
