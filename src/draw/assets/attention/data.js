/**
 * The numbers of one prompt, as `Data` in attention_html.rs writes them.
 *
 * Layers and heads are indices among those that are shown; `layers[index]` and `heads[index]` are their numbers in
 * the model. Tokens are positions.
 */
class Attention {
  constructor(data) {
    this.tokens = data.tokens;
    this.layers = data.layers;
    this.heads = data.heads;
    this.kvHeads = data.kv_heads;
    this.headDim = data.head_dim;
    this.prepared = data.prepared;
    this.nStages = data.similarity.length;
    this.data = data;
    this.unpacked = new Map();
  }

  get nTokens() {
    return this.tokens.length;
  }

  /** The weights of `query` for each token up to itself, which sum to 1. */
  weights(layer, head, query) {
    const triangle = this.floats(this.data.weights[layer][head]);
    return triangle.subarray(triangleStart(query), triangleStart(query + 1));
  }

  /** The weight of `query` for `key`: 0 for a later token. */
  weight(layer, head, query, key) {
    return key > query ? 0 : this.weights(layer, head, query)[key];
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
    const triangle = this.floats(this.data.similarity[stage]);
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

  vector(text, token) {
    return this.floats(text).subarray(token * this.headDim, (token + 1) * this.headDim);
  }

  /** The 32-bit floats that `text` holds in base 64, decoded once. */
  floats(text) {
    let floats = this.unpacked.get(text);
    if (!floats) {
      const characters = atob(text);
      const bytes = new Uint8Array(characters.length);
      for (let at = 0; at < bytes.length; at += 1) {
        bytes[at] = characters.charCodeAt(at);
      }
      floats = new Float32Array(bytes.buffer); // little endian, as every machine that runs a browser
      this.unpacked.set(text, floats);
    }
    return floats;
  }
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
 * the products, their sum, the sum divided by the root of their number, and the softmax.
 */
function score(attention, layer, head, query) {
  const q = attention.query(layer, head, query);
  const root = Math.sqrt(attention.headDim);
  const rows = [];
  for (let key = 0; key <= query; key += 1) {
    const k = attention.key(layer, head, key);
    const products = Array.from(q, (x, dimension) => x * k[dimension]);
    const sum = products.reduce((total, x) => total + x, 0);
    rows.push({ key, k, products, sum, scaled: sum / root });
  }
  const highest = Math.max(...rows.map((row) => row.scaled)); // or exp overflows
  const total = rows.reduce((sum, row) => sum + Math.exp(row.scaled - highest), 0);
  for (const row of rows) {
    row.softmax = Math.exp(row.scaled - highest) / total;
  }
  return { q, rows };
}
