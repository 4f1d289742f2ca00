// Scores as the page can compute them again, from queries and keys to four decimals, where it holds them.
import { firstKey } from "page/weights.js";

export const hasOperands = (data, layer) => data.get(`queries.${layer}`) !== undefined;

export function queryVector(data, layer, head, token) {
  return data.get(`queries.${layer}`).vector(head, token);
}

// Several query heads share one head of keys, in order.
export function keyVector(data, layer, head, token) {
  const { heads, groups } = data.shape;
  return data.get(`keys.${layer}`).vector(Math.floor(head / (heads / groups)), token);
}

export const dot = (a, b) => a.reduce((sum, one, i) => sum + one * b[i], 0);

// q·k / sqrt(E) for every key that the query may see, the first visible one first.
export function scores(data, layer, head, token) {
  const query = queryVector(data, layer, head, token);
  const first = firstKey(data, layer, token);
  return Array.from({ length: token - first + 1 }, (_, i) => dot(query, keyVector(data, layer, head, first + i)) / Math.sqrt(query.length));
}

export function softmax(values) {
  const largest = Math.max(...values);
  const powers = values.map((value) => Math.exp(value - largest));
  const total = powers.reduce((sum, one) => sum + one, 0);
  return { powers, total, largest, shares: powers.map((one) => one / total) };
}
