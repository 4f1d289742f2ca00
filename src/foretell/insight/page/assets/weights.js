// Attention weights: which pairs are stored, and where. A layer's rows follow each other, each from its first visible key.
export function firstKey(data, layer, query) {
  const window = data.windows[layer];
  return window === null ? 0 : Math.max(0, query - window + 1);
}

export const isVisible = (data, layer, query, key) => key <= query && key >= firstKey(data, layer, query);
export const isKept = (data, query) => query >= data.firstQuery;

// How many weights of a head come before a row.
function before(data, layer, query) {
  const window = data.windows[layer] ?? Infinity;
  const growing = Math.min(query, window);
  const full = Math.max(0, query - growing);
  return (growing * (growing + 1)) / 2 + (full && full * window);
}

// The row of a query as whole ten-thousandths, beginning at its first visible key; nothing where it was left out.
export function row(data, layer, head, query) {
  if (!isKept(data, query)) return new Uint16Array(0);
  const { whole, shape } = data.get(`attention.${layer}`);
  const from = head * shape[1] + before(data, layer, query) - before(data, layer, data.firstQuery);
  return whole.subarray(from, from + query - firstKey(data, layer, query) + 1);
}

export function weight(data, layer, head, query, key) {
  if (!isVisible(data, layer, query, key)) return 0;
  return (row(data, layer, head, query)[key - firstKey(data, layer, query)] ?? 0) / 10000;
}

export function strongest(data, layer, head, query) {
  const own = row(data, layer, head, query);
  let best = 0;
  for (let i = 1; i < own.length; i++) if (own[i] > own[best]) best = i;
  return firstKey(data, layer, query) + best;
}
